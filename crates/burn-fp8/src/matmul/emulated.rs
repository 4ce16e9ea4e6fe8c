//! The three products, emulated: quantize, multiply the decoded codes in f32, apply both scales.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::GemmRole;

use super::{Fp8Matmul, Product, Quantized, SavedOperand};

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`.
pub(crate) fn matmul<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    forward::<B>(lhs, rhs, product, [false, false]).0
}

/// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`.
pub(crate) fn linear<B: Fp8Matmul>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    product: &Product,
) -> FloatTensor<B> {
    add_bias::<B>(matmul::<B>(x, weight, product), bias)
}

/// A product of the forward pass: operands of the same rank, or any left operand and a matrix. Keeps the operands that
/// `save` asks for.
///
/// Operands are quantized in the layout they have and joined to matrices afterwards: quantizing takes any layout without a copy,
/// joining dimensions does not.
pub(crate) fn forward<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
    save: [bool; 2],
) -> (FloatTensor<B>, [Option<SavedOperand<B>>; 2]) {
    let dtype = lhs.dtype();
    let mut shape = lhs.shape();
    let columns = rhs.shape()[rhs.rank() - 1];
    let (lhs_format, rhs_format) = GemmRole::Output.formats();
    let mut lhs = B::fp8_quantize(lhs, product.quantize(lhs_format, save[0]));
    let mut rhs = B::fp8_quantize(rhs, product.quantize(rhs_format, save[1]));
    let saved = [lhs.save(), rhs.save()];
    let (lhs, rhs) = (product.join(lhs), product.join(rhs));
    let mut output = multiply::<B>(GemmRole::Output, lhs, rhs, dtype, product);
    if product.is_flat() {
        let last = shape.num_dims() - 1;
        shape[last] = columns;
        output = reshape::<B>(output, shape);
    }
    (output, saved)
}

/// The gradients of the operands of a forward product, of the shapes of those operands.
///
/// The gradient of the left operand needs the right one saved, and the other way round; where the operand was not saved
/// its counterpart's gradient is not computed.
pub(crate) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    [lhs, rhs]: [Option<SavedOperand<B>>; 2],
    [lhs_shape, rhs_shape]: [Shape; 2],
    product: &Product,
) -> [Option<FloatTensor<B>>; 2] {
    if lhs.is_none() && rhs.is_none() {
        return [None, None];
    }
    let dtype = output_grad.dtype();
    let (format, _) = GemmRole::GradInput.formats();
    let output_grad = product.join(B::fp8_quantize(output_grad, product.quantize(format, false)));
    let grad_lhs = rhs.map(|rhs| {
        let rhs = transpose(product.join(rhs.restore()));
        let grad = multiply::<B>(GemmRole::GradInput, output_grad.clone(), rhs, dtype, product);
        reduce::<B>(grad, lhs_shape)
    });
    let grad_rhs = lhs.map(|lhs| {
        let lhs = transpose(product.join(lhs.restore()));
        let grad = multiply::<B>(GemmRole::GradWeight, lhs, output_grad, dtype, product);
        reduce::<B>(grad, rhs_shape)
    });
    [grad_lhs, grad_rhs]
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
    let (grad_format, weight_format) = GemmRole::GradInput.formats();
    let grad = matrix(B::fp8_quantize(output_grad, product.quantize(grad_format, false)));
    let weight = transpose(B::fp8_quantize(weight, product.quantize(weight_format, false)));
    let grad = multiply::<B>(GemmRole::GradInput, grad, weight, dtype, product);
    reshape::<B>(grad, shape)
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions by joining them in one GEMM.
pub(crate) fn linear_weight_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    let dtype = output_grad.dtype();
    let (x_format, grad_format) = GemmRole::GradWeight.formats();
    let x = transpose(matrix(B::fp8_quantize(x, product.quantize(x_format, false))));
    let grad = matrix(B::fp8_quantize(output_grad, product.quantize(grad_format, false)));
    multiply::<B>(GemmRole::GradWeight, x, grad, dtype, product)
}

/// Adds a bias `[N]` to `[…, N]`.
pub(crate) fn add_bias<B: Backend>(
    output: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    match bias {
        Some(bias) => {
            let bias = unsqueeze::<B>(bias, output.rank());
            B::float_add(output, bias)
        }
        None => output,
    }
}

/// Prepends dimensions of size 1 until the tensor has `rank` dimensions.
fn unsqueeze<B: Backend>(tensor: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let shape = tensor.shape();
    let mut dims = vec![1; rank.saturating_sub(shape.num_dims())];
    dims.extend(shape.iter());
    reshape::<B>(tensor, Shape::from(dims))
}

fn multiply<B: Fp8Matmul>(
    role: GemmRole,
    lhs: Quantized<B>,
    rhs: Quantized<B>,
    dtype: DType,
    product: &Product,
) -> FloatTensor<B> {
    product.record(role, [(lhs.format, &lhs.scale), (rhs.format, &rhs.scale)]);
    let output = B::float_matmul(lhs.values, rhs.values);
    let output = B::fp8_rescale(output, &lhs.scale, &rhs.scale);
    match dtype {
        DType::F32 => output,
        dtype => B::float_cast(output, dtype.into()),
    }
}

fn transpose<B: Backend>(operand: Quantized<B>) -> Quantized<B> {
    Quantized { values: B::float_transpose(operand.values), ..operand }
}

impl Product {
    /// The operand as the product multiplies it: as a matrix where leading dimensions join M.
    fn join<B: Backend>(&self, operand: Quantized<B>) -> Quantized<B> {
        match self.is_flat() {
            true => matrix(operand),
            false => operand,
        }
    }
}

/// Joins all dimensions but the last.
fn matrix<B: Backend>(operand: Quantized<B>) -> Quantized<B> {
    let shape = operand.values.shape();
    let columns = shape[shape.num_dims() - 1];
    let rows = shape.num_elements() / columns;
    Quantized { values: reshape::<B>(operand.values, Shape::new([rows, columns])), ..operand }
}

fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    match tensor.shape() == shape {
        true => tensor,
        false => B::float_reshape(tensor, shape),
    }
}

/// Sums a gradient over the dimensions along which its operand was broadcast, and gives it the operand's shape.
fn reduce<B: Backend>(mut grad: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    if grad.rank() == shape.num_dims() {
        for dim in 0..shape.num_dims() {
            if shape[dim] == 1 && grad.shape()[dim] != 1 {
                grad = B::float_sum_dim(grad, dim);
            }
        }
    }
    reshape::<B>(grad, shape)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{DType, Distribution, Tensor, TensorMetadata};
    use burn_fp8_core::{Fp8Format, Gemm, GemmRole, ProductKind};

    use super::*;
    use crate::matmul::Codes;

    /// What a backward step keeps of its operands: those asked for, one byte an element.
    #[test]
    fn saved_operands_take_one_byte_an_element() {
        let random = |shape: [usize; 3]| {
            let tensor =
                Tensor::<Flex, 3>::random(shape, Distribution::Default, &Default::default());
            tensor.into_primitive().tensor()
        };
        let (x, w) = (random([2, 16, 32]), random([1, 32, 24]));
        let gemm = Gemm::from_shapes(&x.shape(), &w.shape()).expect("the shapes multiply");
        let product = Product::plan::<Flex>(ProductKind::Matmul, GemmRole::Output, gemm, [&x, &w])
            .expect("large enough");
        for save in [[true, false], [false, true], [true, true], [false, false]] {
            let (output, saved) = forward::<Flex>(x.clone(), w.clone(), &product, save);
            assert_eq!(output.shape(), Shape::new([2, 16, 24]));
            for (saved, (save, elements)) in saved.iter().zip(save.iter().zip([1024, 768])) {
                assert_eq!(saved.is_some(), *save);
                let Some(saved) = saved else { continue };
                let Codes::Bytes(codes, Fp8Format::E4M3) = &saved.codes else {
                    panic!("Flex holds bytes");
                };
                assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            }
        }
    }
}
