//! The three products on tensor cores.
//!
//! FP8 tensor cores want both operands with the dimension that is summed over contiguous, so a GEMM is `[M, K] · [N, K]ᵀ` here:
//!
//! | role          | left            | right           |
//! |---------------|-----------------|-----------------|
//! | `output`      | x `[M, K]`      | wᵀ `[N, K]`     |
//! | `grad_input`  | g `[M, N]`      | w `[K, N]`      |
//! | `grad_weight` | xᵀ `[K, M]`     | gᵀ `[N, M]`     |
//!
//! Each tensor is read once and written in the layouts that its products need: x for `output`, xᵀ to be kept for the backward pass.

use burn::tensor::DType;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{GemmRole, Layouts, Operand};

use super::operand::{MeasuredMatrix, MeasuredOperand, SavedOperand};
use super::scheme::{Gemms, Quantizer, Scheme, Uses};
use crate::engine::{Fp8Engine, GemmOptions, Scalar, native_gemm};
use crate::report::{PendingRan, new_note};

/// Tensor cores.
pub(crate) struct Native;

impl<B: Fp8Engine, Q: Quantizer<B>> Scheme<B, Q> for Native {
    type Quantized = MeasuredMatrix<B>;
    type Factor = MeasuredOperand<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        quantizer: &Q,
        _gemms: &Gemms,
    ) -> MeasuredMatrix<B> {
        let any = |transposed| uses.roles().any(|role| is_transposed(operand, role) == transposed);
        let layouts = Layouts::of(any(false), any(true)).expect("an operand of some product");
        MeasuredMatrix::new(tensor, quantizer.quantize_matrix(tensor, operand, layouts))
    }

    fn amax(quantized: &MeasuredMatrix<B>) -> Option<Scalar<B>> {
        quantized.matrix.amax.clone()
    }

    fn scale(quantized: &MeasuredMatrix<B>) -> Option<Scalar<B>> {
        Some(quantized.matrix.scale.clone())
    }

    fn factor(
        quantized: &MeasuredMatrix<B>,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> MeasuredOperand<B> {
        match is_transposed(operand, role) {
            true => quantized.by_columns(),
            false => quantized.by_rows(),
        }
    }

    fn keep(quantized: &MeasuredMatrix<B>, operand: Operand, role: GemmRole) -> SavedOperand<B> {
        SavedOperand::Matrix(match is_transposed(operand, role) {
            true => quantized.by_columns(),
            false => quantized.by_rows(),
        })
    }

    fn restore(
        saved: SavedOperand<B>,
        _operand: Operand,
        _role: GemmRole,
        _gemms: &Gemms,
    ) -> MeasuredOperand<B> {
        let SavedOperand::Matrix(operand) = saved else {
            unreachable!("a native product finds the matrix that it has kept");
        };
        operand
    }

    fn multiply(
        role: GemmRole,
        factors: [MeasuredOperand<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        let options = options(role, dtype, gemms);
        if let Some(note) = &options.note {
            let ran = PendingRan::noted::<B>(note, B::int_device(&factors[0].operand.words));
            gemms.record(role, || factors.each_ref().map(MeasuredOperand::pending), ran);
        }
        let [lhs, rhs] = factors.map(|factor| factor.operand);
        native_gemm::<B>(lhs, rhs, options)
    }
}

/// How one of the three is run.
pub(super) fn options(role: GemmRole, dtype: DType, gemms: &Gemms) -> GemmOptions {
    GemmOptions {
        k: gemms.gemm(role).k,
        dtype,
        // As in TransformerEngine and torchao: gradients sum more terms of smaller size.
        fast_accumulation: role == GemmRole::Output,
        otherwise: gemms.otherwise(),
        note: new_note(),
    }
}

/// Whether an operand stands in a product as the rows of its transpose: see the table above.
pub(super) fn is_transposed(operand: Operand, role: GemmRole) -> bool {
    match role {
        GemmRole::Output => operand == Operand::Weight,
        GemmRole::GradInput => false,
        GemmRole::GradWeight => true,
    }
}
