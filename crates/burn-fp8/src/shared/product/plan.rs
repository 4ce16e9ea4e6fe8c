//! The decision whether a product of the decorator runs in FP8, taken once, and how its operands are quantized then.

use burn_backend::{DType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Gemm, GemmRole, Operand, Precision, ProductKind, Recipe, Scaling};

use super::delayed::{self, SiteUse, WeightKey};
use super::operand::{Gemms, Quantizer};
use crate::config::{self, Ambient, Fp8Config, ProductInfo};
use crate::engine::Leaf;
use crate::engine::{
    Fp8Engine, MatrixOf, Request, Requirements, ScalarOf, ScaleRule, ScaleRuleOf, Target, Wanted,
};
use crate::host;
use crate::report::{self, HighPrecision, record_high_precision};

/// A product that runs as a recipe says, with the configuration that was ambient when that was decided.
#[derive(Clone, Debug)]
pub struct Product {
    pub(crate) gemms: Gemms,
    /// Its place under delayed scaling.
    site: Option<SiteUse>,
    /// The node of the graph that the weight is, where it is a parameter.
    weight: Option<u64>,
}

impl Product {
    /// Whether a product would run in FP8, else why not. Records nothing.
    pub(crate) fn would_run(
        kind: ProductKind,
        gemm: Gemm,
        dtypes: [DType; 2],
    ) -> Result<(), HighPrecision> {
        let product = ProductInfo { kind, role: GemmRole::Output, gemm };
        check(&config::current(), &product, dtypes, false, || None)
    }

    /// Decides whether a product of tensors of these shapes and types runs in FP8, and records it in the trace if not.
    ///
    /// `role` tells which product is about to run, `forward` the shape of the forward product it belongs to, `is_tracked` whether its gradients
    /// will be asked for, `parameter` Burn's id of the right operand, where that is known.
    pub(crate) fn plan<B: Fp8Engine>(
        kind: ProductKind,
        role: GemmRole,
        forward: Gemm,
        operands: [&FloatTensor<B>; 2],
        is_tracked: bool,
        parameter: impl FnOnce() -> Option<u64>,
    ) -> Option<Self> {
        let ambient = config::current();
        let Fp8Config { recipe, accumulation, .. } = ambient.config;
        let manner = ambient.config.manner();
        let gemm = forward.for_role(role);
        let info = ProductInfo { kind, role, gemm };
        let with_gradients = is_tracked || role != GemmRole::Output;
        let dtypes = operands.map(TensorMetadata::dtype);
        let in_fp8 = check(&ambient, &info, dtypes, with_gradients, parameter);
        // A gradient product that comes by itself, from Burn's Autodiff.
        let left_out = role != GemmRole::Output && recipe.products.of(role) == Precision::High;
        let in_fp8 = in_fp8.and(if left_out { Err(HighPrecision::Recipe) } else { Ok(()) });
        if let Err(reason) = in_fp8 {
            record_high_precision(kind, role, gemm, reason);
            return None;
        }
        let target = match recipe.products.any_in_fp8() {
            true => target::<B>(&recipe, forward, operands[0], &ambient.config),
            false => Target::Emulation(None),
        };
        if let Err(error) = ambient.config.check_bf16::<B>(&host::float_device::<B>(operands[0])) {
            panic!("{error}");
        }
        let tap = report::observe(kind, forward, manner.sums, accumulation);
        let gemms = Gemms { kind, forward, recipe, target, manner, accumulation, site: None, tap };
        Some(Self { gemms, site: None, weight: None })
    }

    /// Counts a tracked product that is not in FP8, where scaling is delayed.
    ///
    /// `weight` is the right operand, where that is a parameter.
    pub(crate) fn skip_site(forward: Gemm, weight: Option<Leaf>) {
        delayed::current().skip_site(forward, config::current().config.recipe, weight);
    }

    /// Gives the product, whose gradients are tracked, a place under delayed scaling, if that is the recipe.
    ///
    /// `weight` is the right operand, where that is a parameter, `node` the node of the graph that it is.
    pub(crate) fn take_site(&mut self, weight: Option<Leaf>, node: Option<u64>) {
        let recipe = self.gemms.recipe;
        self.weight = node;
        self.site = match recipe.scaling {
            Scaling::Current(_) => None,
            Scaling::Delayed(_) => delayed::current().next_site(self.gemms.forward, recipe, weight),
        };
        self.gemms.site = self.site.as_ref().map(SiteUse::site);
    }

    /// Hands the amaxes of the input and the weight over to the state of delayed scaling.
    pub(crate) fn enter<B: Fp8Engine>(&mut self, amaxes: &[Option<ScalarOf<B>>; 2]) {
        if let Some(site) = &mut self.site {
            site.enter::<B>(amaxes.clone());
        }
    }

    /// Hands the amaxes of the input, the weight and the output gradient over to the state of delayed scaling.
    pub(crate) fn deposit<B: Fp8Engine>(&self, amaxes: [Option<ScalarOf<B>>; 3]) {
        if let Some(site) = &self.site {
            site.deposit::<B>(amaxes);
        }
    }

    /// How the scale of an operand is chosen.
    fn scale_rule<B: Fp8Engine>(
        &self,
        operand: Operand,
        tensor: &FloatTensor<B>,
    ) -> ScaleRuleOf<B> {
        let recipe = self.gemms.recipe;
        match &self.site {
            Some(site) => site.rule::<B>(operand, recipe, &host::float_device::<B>(tensor)),
            None => ScaleRule::Current(recipe),
        }
    }

    /// Under which key the micro-batches of a step share the quantized weight.
    fn shared(&self, operand: Operand) -> Option<(&SiteUse, WeightKey)> {
        match (operand, &self.site, self.weight) {
            (Operand::Weight, Some(site), Some(node)) => {
                Some((site, WeightKey { node, recipe: self.gemms.recipe }))
            }
            _ => None,
        }
    }
}

/// By the recipe in force, from the tensor or from the histories of its site.
impl<B: Fp8Engine> Quantizer<B> for Product {
    fn gemms(&self) -> &Gemms {
        &self.gemms
    }

    fn quantize(
        &self,
        tensor: &FloatTensor<B>,
        operand: Operand,
        block: [usize; 2],
        wanted: Wanted,
    ) -> MatrixOf<B> {
        let format = self.gemms.recipe.formats.of(operand);
        let shared = self.shared(operand).filter(|_| wanted.codes());
        if let Some((site, key)) = &shared
            && let Some(matrix) = site.shared_weight::<MatrixOf<B>>(key)
            && matrix.has(wanted)
        {
            return matrix;
        }
        let rule = self.scale_rule::<B>(operand, tensor);
        let matrix = B::fp8_quantize(tensor.clone(), Request { format, block, rule, wanted });
        if let Some((site, key)) = shared {
            site.share_weight(key, MatrixOf::<B> { values: None, ..matrix.clone() });
        }
        matrix
    }
}

fn check(
    ambient: &Ambient,
    product: &ProductInfo,
    dtypes: [DType; 2],
    with_gradients: bool,
    parameter: impl FnOnce() -> Option<u64>,
) -> Result<(), HighPrecision> {
    if !ambient.config.enabled {
        return Err(HighPrecision::Off);
    }
    product
        .check(&ambient.config.filter, with_gradients, parameter)
        .map_err(HighPrecision::Filter)?;
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

/// Where a product with the scales of this recipe runs. Panics where it is to run natively and cannot.
pub(crate) fn target<B: Fp8Engine>(
    recipe: &Recipe,
    forward: Gemm,
    operand: &FloatTensor<B>,
    config: &Fp8Config,
) -> Target {
    let kind = Requirements::of_recipe(recipe, forward);
    Target::of::<B>(&host::float_device::<B>(operand), kind, config.manner())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The GEMM of a linear layer: `x` `[…, K]` times `weight` `[K, N]`, both of at least two dimensions.
///
/// `None` where the shapes do not fit.
pub(crate) fn linear_gemm(x: &Shape, weight: &Shape) -> Option<Gemm> {
    let rank = x.num_dims();
    if rank < 2 || weight.num_dims() != 2 || x[rank - 1] != weight[0] {
        return None;
    }
    let m = x.num_elements().checked_div(x[rank - 1]).unwrap_or(0);
    Some(Gemm::matrix(m, weight[1], weight[0]))
}

/// The product of two matrices, or batches of them.
///
/// # Panics
/// Where the shapes do not fit.
#[track_caller]
pub(crate) fn fitting_gemm(shapes: &[Shape; 2]) -> Gemm {
    Gemm::from_shapes(&shapes[0], &shapes[1]).unwrap_or_else(|| {
        let leading = "and leading dimensions must be equal, or 1 in one of them";
        misfit("matrices", shapes, &format!("[…, M, K] and […, K, N], {leading}"))
    })
}

/// The shape of that product.
pub(crate) fn product_shape([lhs, rhs]: &[Shape; 2]) -> Shape {
    let rank = lhs.num_dims();
    let sides = [lhs[rank - 2], rhs[rank - 1]];
    let leading = lhs.iter().zip(rhs.iter()).take(rank - 2);
    leading.map(|(lhs, rhs)| if *lhs == 1 { *rhs } else { *lhs }).chain(sides).collect()
}

/// [`linear_gemm`] of input and weight in this order.
///
/// # Panics
/// Where the shapes do not fit.
#[track_caller]
pub(crate) fn fitting_linear_gemm(shapes: &[Shape; 2]) -> Gemm {
    linear_gemm(&shapes[0], &shapes[1])
        .unwrap_or_else(|| misfit("input and weight", shapes, "[…, K] and [K, N]"))
}

/// Backends may not check the shapes of a product: Flex 0.21 reads foreign memory where batches do not broadcast. So this holds with FP8 off, too.
pub(crate) fn misfit(what: &str, [lhs, rhs]: &[Shape; 2], fits: &str) -> ! {
    let (lhs, rhs) = (lhs.as_slice(), rhs.as_slice());
    panic!("{what} of the shapes {lhs:?} and {rhs:?} do not multiply; these do: {fits}")
}
