//! The decision whether a product runs in FP8, taken once.

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{Gemm, GemmRole, Granularity, Layouts, Operand, ProductKind, Recipe, Scaling};

use super::matrix::{GemmOptions, MeasuredMatrix, MeasuredOperand};
use super::operand::{Measured, SavedCodes};
use super::{Fp8Matmul, Quantize, Rows, ScaleRule};
use crate::config::{self, Ambient, Execution, ProductInfo};
use crate::report::{self, HighPrecision, Pending, PendingOperand, PendingRan, Ran, Tap};
use crate::scaling::delayed::{self, SiteUse};
use crate::{Capability, Fallback, Fp8Error, Scalar};

/// A product that runs in FP8, with the configuration that was ambient when that was decided.
#[derive(Clone, Debug)]
pub struct Product {
    ambient: Arc<Ambient>,
    kind: ProductKind,
    /// The shape of the forward product.
    forward: Gemm,
    /// Its place under delayed scaling.
    site: Option<SiteUse>,
    /// The node of the graph that the weight is, where it is a parameter.
    weight: Option<u64>,
    path: Path,
    /// Where it leaves what the observatory wants to see.
    tap: Option<Tap>,
}

/// Where a product runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// On tensor cores.
    Native,
    /// Emulated, as asked for or as the device has nothing else.
    FakeQuantized,
    /// Emulated, on a device that runs other products natively.
    Fallback(Fallback),
}

/// What quantizing a weight gave.
#[derive(Clone)]
struct QuantizedWeight<B: Fp8Matmul> {
    codes: SavedCodes<B>,
    amax: Option<Scalar<B>>,
}

impl Product {
    /// Whether a product would run in FP8, else why not. Records nothing.
    pub(crate) fn would_run(
        kind: ProductKind,
        gemm: Gemm,
        dtypes: [DType; 2],
    ) -> Result<(), HighPrecision> {
        check(&config::current(), &ProductInfo { kind, role: GemmRole::Output, gemm }, dtypes)
    }

    /// Decides whether a product of tensors of these shapes and types runs in FP8, and records it in the trace if not.
    ///
    /// `role` tells which product is about to run, `forward` the shape of the forward product it belongs to.
    pub(crate) fn plan<B: Fp8Matmul>(
        kind: ProductKind,
        role: GemmRole,
        forward: Gemm,
        operands: [&B::FloatTensorPrimitive; 2],
    ) -> Option<Self> {
        let ambient = config::current();
        let gemm = forward.for_role(role);
        match check(
            &ambient,
            &ProductInfo { kind, role, gemm },
            operands.map(TensorMetadata::dtype),
        ) {
            // A gradient product that comes by itself, from Burn's Autodiff.
            Ok(()) if role != GemmRole::Output && !ambient.config.recipe.products.in_fp8(role) => {
                record_high_precision(kind, role, gemm, HighPrecision::Recipe);
                None
            }
            Ok(()) => {
                let path = Path::choose::<B>(&ambient, forward, operands[0]);
                let tap = report::observe(kind, forward);
                Some(Self { ambient, kind, forward, site: None, weight: None, path, tap })
            }
            Err(reason) => {
                record_high_precision(kind, role, gemm, reason);
                if B::fp8_is_tracked(operands) {
                    Self::skip_site();
                }
                None
            }
        }
    }

    /// Counts a tracked product that is not in FP8, where scaling is delayed.
    pub(crate) fn skip_site() {
        delayed::current().skip_site(config::current().config.recipe);
    }

    /// Whether the operands of the forward product are two plain matrices once leading dimensions have joined M.
    pub(crate) fn is_flat(&self) -> bool {
        self.forward.batch == 1 && self.forward.plain_operand
    }

    /// Where it runs.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The observatory, where this step is sampled.
    pub(crate) fn tap(&self) -> Option<&Tap> {
        self.tap.as_ref()
    }

    /// How it was to be run.
    pub(crate) fn execution(&self) -> Execution {
        self.ambient.config.execution
    }

    /// The shape of one of the three products.
    pub(crate) fn gemm(&self, role: GemmRole) -> Gemm {
        self.forward.for_role(role)
    }

    /// The recipe.
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.ambient.config.recipe
    }

    /// Gives the product, whose gradients are tracked, a place under delayed scaling, if that is the recipe.
    ///
    /// `weight` is the node of the graph that the right operand is, where that is a leaf.
    pub(crate) fn take_site(&mut self, weight: Option<u64>) {
        self.weight = weight;
        self.site = match self.recipe().scaling {
            Scaling::Current(_) => None,
            Scaling::Delayed(_) => delayed::current().next_site(self.forward, *self.recipe()),
        };
    }

    /// Hands the amaxes of the input, the weight and the output gradient over to the state of delayed scaling.
    pub(crate) fn deposit<B: Fp8Matmul>(&self, amaxes: [Option<Scalar<B>>; 3]) {
        if let Some(site) = &self.site {
            site.deposit::<B>(amaxes);
        }
    }

    /// Quantizes the weight, unless an earlier micro-batch of the step has done that.
    pub(crate) fn quantize_weight<B: Fp8Matmul>(
        &self,
        tensor: &FloatTensor<B>,
        save: bool,
    ) -> Measured<B> {
        let request = self.quantize::<B>(Operand::Weight, save, tensor);
        let (Some(site), Some(node), true) = (&self.site, self.weight, save) else {
            return Measured::quantize(tensor, request);
        };
        let recipe = *self.recipe();
        // A trace wants to know how much saturated; a weight quantized before it began does not tell.
        if let Some(weight) = site.cached_weight(node, recipe)
            && let QuantizedWeight::<B> { codes, amax } = weight
            && codes.saturated.is_some() == report::is_tracing()
        {
            return codes.restore(amax);
        }
        let weight = Measured::quantize(tensor, request);
        if let Some(codes) = weight.codes() {
            let amax = weight.quantized.amax.clone();
            site.cache_weight(node, recipe, QuantizedWeight { codes, amax });
        }
        weight
    }

    /// Quantizes the weight for tensor cores, unless an earlier micro-batch of the step has done that.
    pub(crate) fn quantize_weight_matrix<B: Fp8Matmul>(
        &self,
        tensor: &FloatTensor<B>,
        layouts: Layouts,
    ) -> MeasuredMatrix<B> {
        let request = self.quantize_matrix::<B>(Operand::Weight, layouts, tensor);
        let (Some(site), Some(node)) = (&self.site, self.weight) else {
            return MeasuredMatrix::quantize(tensor, request);
        };
        let recipe = *self.recipe();
        if let Some(weight) = site.cached_weight::<MeasuredMatrix<B>>(node, recipe)
            && weight.has(layouts)
            && weight.saturated.is_some() == report::is_tracing()
        {
            return weight;
        }
        let weight = MeasuredMatrix::quantize(tensor, request);
        site.cache_weight(node, recipe, weight.clone());
        weight
    }

    /// How an operand is quantized.
    pub(crate) fn quantize<B: Fp8Matmul>(
        &self,
        operand: Operand,
        save: bool,
        tensor: &FloatTensor<B>,
    ) -> Quantize<B> {
        let recipe = *self.recipe();
        let scale = match &self.site {
            Some(site) => site.rule::<B>(operand, recipe, &B::float_device(tensor)),
            None => ScaleRule::Current(recipe),
        };
        Quantize { format: recipe.formats.of(operand), scale, save }
    }

    /// Records a product of this kind that ran emulated.
    pub(crate) fn record<B: Backend>(&self, role: GemmRole, operands: [&Measured<B>; 2]) {
        let ran = PendingRan::Known(self.ran_emulated());
        self.record_fp8(role, || operands.map(PendingOperand::new), ran);
    }

    fn ran_emulated(&self) -> Ran {
        match &self.path {
            Path::Fallback(reason) => Ran::Fallback(reason.clone()),
            _ => Ran::FakeQuantized,
        }
    }

    /// Records a product of this kind that ran emulated, with scales per row.
    pub(crate) fn record_rows<B: Fp8Matmul>(
        &self,
        role: GemmRole,
        operands: [&Rows<B, FloatTensor<B>>; 2],
    ) {
        let ran = PendingRan::Known(self.ran_emulated());
        self.record_fp8(role, || operands.map(PendingOperand::of_rows), ran);
    }

    /// Records a product of this kind that runs natively.
    pub(crate) fn record_native<B: Backend>(
        &self,
        role: GemmRole,
        operands: [&MeasuredOperand<B>; 2],
        options: &GemmOptions,
    ) {
        if let Some(note) = &options.note {
            let device = B::int_device(&operands[0].operand.words);
            let ran = PendingRan::noted::<B>(note, device);
            self.record_fp8(role, || operands.map(PendingOperand::of_matrix), ran);
        }
    }

    fn record_fp8(
        &self,
        role: GemmRole,
        operands: impl FnOnce() -> [PendingOperand; 2],
        ran: PendingRan,
    ) {
        report::record(|| Pending {
            kind: self.kind,
            role,
            gemm: self.gemm(role),
            operands: Some(operands()),
            site: self.site.as_ref().map(SiteUse::site),
            ran,
        });
    }

    /// Records a product that the recipe keeps in high precision.
    pub(crate) fn record_high_precision(&self, role: GemmRole) {
        record_high_precision(self.kind, role, self.forward.for_role(role), HighPrecision::Recipe);
    }
}

fn check(
    ambient: &Ambient,
    product: &ProductInfo,
    dtypes: [DType; 2],
) -> Result<(), HighPrecision> {
    if !ambient.config.enabled {
        return Err(HighPrecision::Off);
    }
    ambient.config.filter.check(product.kind, product.gemm).map_err(HighPrecision::Filter)?;
    let [lhs, rhs] = dtypes;
    if lhs != rhs {
        // The backend has an answer, or an error of its own.
        return Err(HighPrecision::MixedDtypes(lhs, rhs));
    }
    if !matches!(lhs, DType::F32 | DType::F16 | DType::BF16 | DType::Flex32) {
        return Err(HighPrecision::Dtype(lhs));
    }
    if !ambient.takes(product) {
        return Err(HighPrecision::Predicate);
    }
    Ok(())
}

impl Path {
    /// Where a product runs. Panics where it is to run natively and cannot.
    fn choose<B: Fp8Matmul>(ambient: &Ambient, forward: Gemm, operand: &FloatTensor<B>) -> Self {
        let execution = ambient.config.execution;
        if execution == Execution::FakeQuantized {
            return Self::FakeQuantized;
        }
        let device = B::float_device(operand);
        let reason = match B::fp8_capability(&device) {
            Capability::FakeQuantized { reason } => Err(reason),
            Capability::Native(_) if !(forward.batch == 1 && forward.plain_operand) => {
                Ok(Some(Fallback::Batched))
            }
            Capability::Native(_) => match ambient.config.recipe.granularity() {
                Granularity::PerTensor => Ok(None),
                Granularity::PerRow => Ok(Some(Fallback::PerRow)),
            },
        };
        match (reason, execution) {
            (Ok(None), _) => Self::Native,
            (Ok(Some(fallback)), Execution::Auto) => Self::Fallback(fallback),
            (Err(_), Execution::Auto) => Self::FakeQuantized,
            (Ok(Some(fallback)), _) => native_unavailable::<B>(&device, fallback.to_string()),
            (Err(reason), _) => native_unavailable::<B>(&device, reason.into_owned()),
        }
    }
}

pub(crate) fn native_unavailable<B: Fp8Matmul>(device: &B::Device, reason: String) -> ! {
    panic!("{}", Fp8Error::NativeUnavailable { backend: B::name(device), reason })
}

/// Whether products of this tensor run on tensor cores. Panics where they have to and cannot.
pub(crate) fn runs_natively<B: Fp8Matmul>(tensor: &FloatTensor<B>, execution: Execution) -> bool {
    if execution == Execution::FakeQuantized {
        return false;
    }
    let device = B::float_device(tensor);
    match (B::fp8_capability(&device), execution) {
        (Capability::Native(_), _) => true,
        (Capability::FakeQuantized { reason }, Execution::Native) => {
            native_unavailable::<B>(&device, reason.into_owned())
        }
        (Capability::FakeQuantized { .. }, _) => false,
    }
}

/// Records products that the backend runs by itself.
pub(crate) fn record_high_precision(
    kind: ProductKind,
    role: GemmRole,
    gemm: Gemm,
    reason: HighPrecision,
) {
    report::record(|| Pending {
        kind,
        role,
        gemm,
        operands: None,
        site: None,
        ran: PendingRan::Known(Ran::HighPrecision(reason)),
    });
}

/// The GEMM of a linear layer: `x` `[…, K]` times `weight` `[K, N]`, both of at least two dimensions.
///
/// `None` where the shapes do not fit; the backend reports that in its own words.
pub(crate) fn linear_gemm(x: &Shape, weight: &Shape) -> Option<Gemm> {
    let rank = x.num_dims();
    if rank < 2 || weight.num_dims() != 2 || x[rank - 1] != weight[0] {
        return None;
    }
    let m = x.num_elements().checked_div(x[rank - 1]).unwrap_or(0);
    Some(Gemm::matrix(m, weight[1], weight[0]))
}
