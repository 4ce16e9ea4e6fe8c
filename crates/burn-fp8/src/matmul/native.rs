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

use super::matrix::{
    GemmOptions, MeasuredMatrix, MeasuredOperand, Otherwise, QuantizeMatrix, native_gemm, new_note,
};
use super::products::{Engine, Uses};
use super::{Fp8Matmul, Product, Quantize, SavedOperand};
use crate::Scalar;

/// Tensor cores.
pub(super) struct Native;

impl<B: Fp8Matmul> Engine<B> for Native {
    type Quantized = MeasuredMatrix<B>;
    type Factor = MeasuredOperand<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        product: &Product,
    ) -> MeasuredMatrix<B> {
        let any = |transposed| uses.roles().any(|role| is_transposed(operand, role) == transposed);
        let layouts = Layouts::of(any(false), any(true)).expect("an operand of some product");
        match operand {
            Operand::Weight => product.quantize_weight_matrix::<B>(tensor, layouts),
            operand => {
                let request = product.quantize_matrix::<B>(operand, layouts, tensor);
                MeasuredMatrix::quantize(tensor, request)
            }
        }
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
        _product: &Product,
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
        _product: &Product,
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
        product: &Product,
    ) -> FloatTensor<B> {
        let options = GemmOptions {
            k: product.gemm(role).k,
            dtype,
            // As in TransformerEngine and torchao: gradients sum more terms of smaller size.
            fast_accumulation: role == GemmRole::Output,
            otherwise: Otherwise::of(product.execution()),
            note: new_note(),
        };
        product.record_native(role, factors.each_ref(), &options);
        let [lhs, rhs] = factors.map(|factor| factor.operand);
        native_gemm::<B>(lhs, rhs, options)
    }
}

/// Whether an operand stands in a product as the rows of its transpose: see the table above.
fn is_transposed(operand: Operand, role: GemmRole) -> bool {
    match role {
        GemmRole::Output => operand == Operand::Weight,
        GemmRole::GradInput => false,
        GemmRole::GradWeight => true,
    }
}

impl Product {
    /// How an operand is quantized for tensor cores.
    pub(super) fn quantize_matrix<B: Fp8Matmul>(
        &self,
        operand: Operand,
        layouts: Layouts,
        tensor: &FloatTensor<B>,
    ) -> QuantizeMatrix<B> {
        let Quantize { format, scale, save: _ } = self.quantize::<B>(operand, false, tensor);
        QuantizeMatrix { format, scale, layouts }
    }
}
