//! What the three GEMMs of training consist of: who chooses the scales, and in which form operands are multiplied.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Gemm, GemmRole, Layouts, Operand, ProductKind, Recipe};

use super::operand::SavedOperand;
use crate::config::Execution;
use crate::engine::tensor::join;
use crate::engine::{
    Fallback, Fp8Engine, Otherwise, Quantized, QuantizedCodes, QuantizedMatrix, Scalar,
};
use crate::report::{
    self, HighPrecision, Implementation, Pending, PendingOperand, PendingRan, Quantization, Site,
    Tap,
};

/// A product of the model, forward and backward: what its three GEMMs have in common.
#[derive(Clone, Debug)]
pub(crate) struct Gemms {
    pub(crate) kind: ProductKind,
    /// The shape of the forward product.
    pub(crate) forward: Gemm,
    /// Which of the three are in FP8, and in which formats.
    pub(crate) recipe: Recipe,
    pub(crate) path: Path,
    /// How they were to be run.
    pub(crate) execution: Execution,
    /// The place of the product under delayed scaling.
    pub(crate) site: Option<Site>,
    /// Where it leaves what the observatory wants to see.
    pub(crate) tap: Option<Tap>,
}

/// Where a product runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// On tensor cores.
    Native,
    /// On a matrix unit of the CPU.
    MatrixUnit,
    /// Emulated, as asked for or as the device has nothing else.
    FakeQuantized,
    /// Emulated, on a device that runs other products natively.
    Fallback(Fallback),
}

impl Gemms {
    /// Whether the operands of the forward product are two plain matrices once leading dimensions have joined M.
    pub(crate) fn is_flat(&self) -> bool {
        self.forward.batch == 1 && self.forward.plain_operand
    }

    /// The shape of one of the three.
    pub(crate) fn gemm(&self, role: GemmRole) -> Gemm {
        self.forward.for_role(role)
    }

    /// A tensor as it is multiplied: as a matrix where leading dimensions join M.
    pub(crate) fn join<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        match self.is_flat() {
            true => join::<B>(tensor),
            false => tensor,
        }
    }

    /// What becomes of a GEMM that the unit turns out not to take.
    pub(crate) fn otherwise(&self) -> Otherwise {
        self.execution.otherwise()
    }

    /// Tells a trace of a GEMM that ran emulated.
    pub(crate) fn record_emulated(
        &self,
        role: GemmRole,
        operands: impl FnOnce() -> [PendingOperand; 2],
    ) {
        let ran = match &self.path {
            Path::Fallback(reason) => Implementation::Fallback(reason.clone()),
            _ => Implementation::FakeQuantized,
        };
        self.record(role, operands, PendingRan::Known(ran));
    }

    /// Tells a trace of a GEMM in FP8.
    pub(crate) fn record(
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
            site: self.site,
            ran,
        });
    }

    /// Tells a trace of a GEMM that the recipe keeps in high precision.
    pub(crate) fn record_high_precision(&self, role: GemmRole) {
        report::record_high_precision(self.kind, role, self.gemm(role), HighPrecision::Recipe);
    }
}

/// Who chooses the scales of operands: the recipe in force, or the state of a layer.
pub(crate) trait Quantizer<B: Fp8Engine> {
    /// Quantizes an operand; with its codes where they are to be saved.
    fn quantize(&self, tensor: &FloatTensor<B>, operand: Operand, save: bool) -> Quantized<B>;

    /// Quantizes an operand to codes alone, for a matrix unit of the CPU.
    fn quantize_codes(&self, tensor: &FloatTensor<B>, operand: Operand) -> QuantizedCodes<B>;

    /// Quantizes an operand, seen as a matrix, for tensor cores.
    fn quantize_matrix(
        &self,
        tensor: &FloatTensor<B>,
        operand: Operand,
        layouts: Layouts,
    ) -> QuantizedMatrix<B>;
}

/// In which form operands are quantized, kept and multiplied.
///
/// Role and operand name a place in the three products: the weight in `grad_input`, for example, which stands there transposed.
pub(crate) trait Scheme<B: Fp8Engine, Q> {
    /// A quantized operand, for all of its places.
    type Quantized;
    /// An operand in its place in a product.
    type Factor;

    /// Quantizes an operand, once for all the products that it is in.
    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        quantizer: &Q,
        gemms: &Gemms,
    ) -> Self::Quantized;

    fn amax(quantized: &Self::Quantized) -> Option<Scalar<B>>;

    /// The scale, where it is that of the whole tensor.
    fn scale(quantized: &Self::Quantized) -> Option<Scalar<B>>;

    /// What the observatory wants to know.
    fn quantization(quantized: &Self::Quantized) -> Quantization<B> {
        Quantization { scale: Self::scale(quantized), amax: Self::amax(quantized) }
    }

    fn factor(
        quantized: &Self::Quantized,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> Self::Factor;

    /// What is kept of an operand for a product of the backward pass.
    fn keep(quantized: &Self::Quantized, operand: Operand, role: GemmRole) -> SavedOperand<B>;

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> Self::Factor;

    /// Multiplies two factors, and records the product.
    fn multiply(
        role: GemmRole,
        factors: [Self::Factor; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B>;
}

/// The products that an operand is quantized for.
pub(crate) struct Uses {
    /// Those of this pass.
    pub(crate) now: Vec<GemmRole>,
    /// The one of the backward pass that it is kept for.
    pub(crate) later: Option<GemmRole>,
}

impl Uses {
    pub(super) fn now(roles: impl IntoIterator<Item = GemmRole>) -> Self {
        Self { now: roles.into_iter().collect(), later: None }
    }

    /// All of them.
    pub(crate) fn roles(&self) -> impl Iterator<Item = GemmRole> {
        self.now.iter().copied().chain(self.later)
    }
}
