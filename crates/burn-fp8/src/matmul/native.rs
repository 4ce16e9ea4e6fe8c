//! The three products of training on tensor cores.
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

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::emulated::{Forward, Gradients, in_high_precision, multiply_high, reduce, reshape};
use super::matrix::{
    GemmOptions, Layouts, MeasuredMatrix, MeasuredOperand, QuantizeMatrix, new_note,
};
use super::{Fp8Matmul, Product, Quantize, SavedOperand};

/// `lhs` `[…, M, K]` times `rhs` `[K, N]`, leading dimensions of `rhs` all 1. Keeps the operands that `save` asks for.
pub(crate) fn forward<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
    save: [bool; 2],
) -> Forward<B> {
    let dtype = lhs.dtype();
    let mut shape = lhs.shape();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape()[rhs.rank() - 1];

    let in_fp8 = |role| product.recipe().products.in_fp8(role);
    let output = in_fp8(GemmRole::Output);
    // The left operand is multiplied again for the gradient of the right one, and the other way round.
    let keep_lhs = save[0] && in_fp8(GemmRole::GradWeight);
    let keep_rhs = save[1] && in_fp8(GemmRole::GradInput);
    let lhs_fp8 = Layouts::of(output, keep_lhs)
        .map(|layouts| quantize::<B>(&lhs, Operand::Input, layouts, product));
    let rhs_fp8 = Layouts::of(keep_rhs, output)
        .map(|layouts| product.quantize_weight_matrix::<B>(&rhs, layouts));

    let saved_lhs = save[0].then(|| match &lhs_fp8 {
        Some(lhs) if keep_lhs => SavedOperand::Matrix(lhs.by_columns()),
        _ => SavedOperand::High(lhs.clone()),
    });
    let saved_rhs = save[1].then(|| match &rhs_fp8 {
        Some(rhs) if keep_rhs => SavedOperand::Matrix(rhs.by_rows()),
        _ => SavedOperand::High(rhs.clone()),
    });
    let amax = |operand: &Option<MeasuredMatrix<B>>| operand.as_ref()?.matrix.amax.clone();
    let amaxes = [amax(&lhs_fp8), amax(&rhs_fp8)];

    let output = match (lhs_fp8, rhs_fp8) {
        (Some(lhs), Some(rhs)) if output => {
            multiply::<B>(GemmRole::Output, lhs.by_rows(), rhs.by_columns(), dtype, product)
        }
        _ => {
            let (lhs, rhs) = (product.join_tensor::<B>(lhs), product.join_tensor::<B>(rhs));
            multiply_high::<B>(GemmRole::Output, lhs, rhs, product)
        }
    };
    Forward { output: reshape::<B>(output, shape), saved: [saved_lhs, saved_rhs], amaxes }
}

/// The gradients of the operands of a forward product, of the shapes of those operands, where the counterpart was saved.
pub(crate) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    [lhs, rhs]: [Option<SavedOperand<B>>; 2],
    [lhs_shape, rhs_shape]: [Shape; 2],
    product: &Product,
) -> Gradients<B> {
    let dtype = output_grad.dtype();
    let is_fp8 = |saved: &Option<SavedOperand<B>>| matches!(saved, Some(SavedOperand::Matrix(_)));
    let grad = Layouts::of(is_fp8(&rhs), is_fp8(&lhs))
        .map(|layouts| quantize::<B>(&output_grad, Operand::OutputGrad, layouts, product));
    let amax = grad.as_ref().and_then(|grad| grad.matrix.amax.clone());
    let fp8 = || grad.as_ref().expect("quantized where an operand is in FP8");
    let high = || product.join_tensor::<B>(output_grad.clone());

    let grad_lhs = rhs.map(|rhs| {
        let role = GemmRole::GradInput;
        let grad = match rhs {
            SavedOperand::Matrix(rhs) => multiply::<B>(role, fp8().by_rows(), rhs, dtype, product),
            other => {
                let rhs = B::float_transpose(product.join_tensor::<B>(in_high_precision(other)));
                multiply_high::<B>(role, high(), rhs, product)
            }
        };
        reduce::<B>(grad, lhs_shape)
    });
    let grad_rhs = lhs.map(|lhs| {
        let role = GemmRole::GradWeight;
        let grad = match lhs {
            SavedOperand::Matrix(lhs) => {
                multiply::<B>(role, lhs, fp8().by_columns(), dtype, product)
            }
            other => {
                let lhs = B::float_transpose(product.join_tensor::<B>(in_high_precision(other)));
                multiply_high::<B>(role, lhs, high(), product)
            }
        };
        reduce::<B>(grad, rhs_shape)
    });
    Gradients { operands: [grad_lhs, grad_rhs], amax }
}

/// `output_grad` `[…, N]` times `weight` `[K, N]` transposed.
pub(crate) fn linear_x_backward<B: Fp8Matmul>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    let dtype = output_grad.dtype();
    let mut shape = output_grad.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[0];
    let grad = quantize::<B>(&output_grad, Operand::OutputGrad, Layouts::Rows, product);
    let weight = quantize::<B>(&weight, Operand::Weight, Layouts::Rows, product);
    let grad = multiply::<B>(GemmRole::GradInput, grad.by_rows(), weight.by_rows(), dtype, product);
    reshape::<B>(grad, shape)
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions.
pub(crate) fn linear_weight_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    let dtype = output_grad.dtype();
    let x = quantize::<B>(&x, Operand::Input, Layouts::Transposed, product);
    let grad = quantize::<B>(&output_grad, Operand::OutputGrad, Layouts::Transposed, product);
    multiply::<B>(GemmRole::GradWeight, x.by_columns(), grad.by_columns(), dtype, product)
}

fn quantize<B: Fp8Matmul>(
    tensor: &FloatTensor<B>,
    operand: Operand,
    layouts: Layouts,
    product: &Product,
) -> MeasuredMatrix<B> {
    MeasuredMatrix::quantize(tensor, product.quantize_matrix::<B>(operand, layouts, tensor))
}

/// `[M, K]` times `[N, K]` transposed.
fn multiply<B: Fp8Matmul>(
    role: GemmRole,
    lhs: MeasuredOperand<B>,
    rhs: MeasuredOperand<B>,
    dtype: DType,
    product: &Product,
) -> FloatTensor<B> {
    let options = GemmOptions {
        k: product.gemm(role).k,
        dtype,
        // As in TransformerEngine and torchao: gradients sum more terms of smaller size.
        fast_accumulation: role == GemmRole::Output,
        note: new_note(),
    };
    product.record_native(role, [&lhs, &rhs], &options);
    B::fp8_gemm(lhs.operand, rhs.operand, options)
}

impl Product {
    /// How an operand is quantized for tensor cores.
    pub(crate) fn quantize_matrix<B: Fp8Matmul>(
        &self,
        operand: Operand,
        layouts: Layouts,
        tensor: &FloatTensor<B>,
    ) -> QuantizeMatrix<B> {
        let Quantize { format, scale, save: _ } = self.quantize::<B>(operand, false, tensor);
        QuantizeMatrix { format, scale, layouts }
    }
}
