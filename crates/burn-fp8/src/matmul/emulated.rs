//! The three products, emulated: quantize, multiply the decoded codes in f32, apply both scales.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::operand::Measured;
use super::{Fp8Matmul, Product, SavedOperand};
use crate::Scalar;

/// A product of the forward pass, and what its backward pass needs.
pub(crate) struct Forward<B: Fp8Matmul> {
    pub(crate) output: FloatTensor<B>,
    /// The operands that were asked for.
    pub(crate) saved: [Option<SavedOperand<B>>; 2],
    /// The amaxes of the operands that were quantized.
    pub(crate) amaxes: [Option<Scalar<B>>; 2],
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
) -> Forward<B> {
    let dtype = lhs.dtype();
    let mut shape = lhs.shape();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape()[rhs.rank() - 1];

    let in_fp8 = |role| product.recipe().products.in_fp8(role);
    // The left operand is multiplied again for the gradient of the right one, and the other way round.
    let again = [in_fp8(GemmRole::GradWeight), in_fp8(GemmRole::GradInput)];
    let prepare = |tensor: &FloatTensor<B>, index: usize| {
        let codes = save[index] && again[index];
        let needed = codes || in_fp8(GemmRole::Output);
        let operand = needed.then(|| match GemmRole::Output.operands()[index] {
            Operand::Weight => product.quantize_weight::<B>(tensor, codes),
            operand => Measured::quantize(tensor, product.quantize::<B>(operand, codes, tensor)),
        });
        let saved = match (save[index], again[index]) {
            (false, _) => None,
            (true, true) => operand.as_ref().and_then(Measured::codes).map(SavedOperand::Fp8),
            (true, false) => Some(SavedOperand::High(tensor.clone())),
        };
        (operand, saved)
    };
    let (lhs_fp8, lhs_saved) = prepare(&lhs, 0);
    let (rhs_fp8, rhs_saved) = prepare(&rhs, 1);
    let amax =
        |operand: &Option<Measured<B>>| operand.as_ref().and_then(|o| o.quantized.amax.clone());
    let amaxes = [amax(&lhs_fp8), amax(&rhs_fp8)];

    let output = match (lhs_fp8, rhs_fp8) {
        (Some(lhs), Some(rhs)) if in_fp8(GemmRole::Output) => {
            let (lhs, rhs) = (product.join(lhs), product.join(rhs));
            multiply::<B>(GemmRole::Output, lhs, rhs, dtype, product)
        }
        _ => {
            let (lhs, rhs) = (product.join_tensor::<B>(lhs), product.join_tensor::<B>(rhs));
            multiply_high::<B>(GemmRole::Output, lhs, rhs, product)
        }
    };
    let output = match product.is_flat() {
        true => reshape::<B>(output, shape),
        false => output,
    };
    Forward { output, saved: [lhs_saved, rhs_saved], amaxes }
}

/// The gradients of a product.
pub(crate) struct Gradients<B: Fp8Matmul> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(crate) operands: [Option<FloatTensor<B>>; 2],
    /// The amax of the output gradient, where it was quantized.
    pub(crate) amax: Option<Scalar<B>>,
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
) -> Gradients<B> {
    let dtype = output_grad.dtype();
    let is_fp8 = |saved: &Option<SavedOperand<B>>| matches!(saved, Some(SavedOperand::Fp8(_)));
    let quantized = (is_fp8(&lhs) || is_fp8(&rhs)).then(|| {
        let request = product.quantize::<B>(Operand::OutputGrad, false, &output_grad);
        product.join(Measured::quantize(&output_grad, request))
    });
    let amax = quantized.as_ref().and_then(|grad| grad.quantized.amax.clone());
    let is_high = |saved: &Option<SavedOperand<B>>| matches!(saved, Some(SavedOperand::High(_)));
    let high = (is_high(&lhs) || is_high(&rhs)).then(|| product.join_tensor::<B>(output_grad));

    let high_grad = || high.clone().expect("kept where an operand is in high precision");
    let fp8_grad = || quantized.clone().expect("quantized where an operand is in FP8");
    let grad_lhs = rhs.map(|rhs| {
        let role = GemmRole::GradInput;
        let grad = match rhs {
            SavedOperand::Fp8(rhs) => {
                let rhs = transpose(product.join(rhs.restore(None)));
                multiply::<B>(role, fp8_grad(), rhs, dtype, product)
            }
            other => {
                let rhs = B::float_transpose(product.join_tensor::<B>(in_high_precision(other)));
                multiply_high::<B>(role, high_grad(), rhs, product)
            }
        };
        reduce::<B>(grad, lhs_shape)
    });
    let grad_rhs = lhs.map(|lhs| {
        let role = GemmRole::GradWeight;
        let grad = match lhs {
            SavedOperand::Fp8(lhs) => {
                let lhs = transpose(product.join(lhs.restore(None)));
                multiply::<B>(role, lhs, fp8_grad(), dtype, product)
            }
            other => {
                let lhs = B::float_transpose(product.join_tensor::<B>(in_high_precision(other)));
                multiply_high::<B>(role, lhs, high_grad(), product)
            }
        };
        reduce::<B>(grad, rhs_shape)
    });
    Gradients { operands: [grad_lhs, grad_rhs], amax }
}

/// The tensor that a product keeps as it is. Panics where it holds codes.
pub(crate) fn in_high_precision<B: Fp8Matmul>(saved: SavedOperand<B>) -> FloatTensor<B> {
    match saved {
        SavedOperand::High(tensor) => tensor,
        _ => unreachable!("products find their operands as they saved them"),
    }
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
    let request = product.quantize::<B>(Operand::OutputGrad, false, &output_grad);
    let grad = matrix(Measured::quantize(&output_grad, request));
    let request = product.quantize::<B>(Operand::Weight, false, &weight);
    let weight = transpose(Measured::quantize(&weight, request));
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
    let request = product.quantize::<B>(Operand::Input, false, &x);
    let x = transpose(matrix(Measured::quantize(&x, request)));
    let request = product.quantize::<B>(Operand::OutputGrad, false, &output_grad);
    let grad = matrix(Measured::quantize(&output_grad, request));
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
    lhs: Measured<B>,
    rhs: Measured<B>,
    dtype: DType,
    product: &Product,
) -> FloatTensor<B> {
    product.record(role, [&lhs, &rhs]);
    let (lhs, rhs) = (lhs.quantized, rhs.quantized);
    let output = B::fp8_plain_matmul(lhs.values, rhs.values);
    let output = B::fp8_rescale(output, &lhs.scale, &rhs.scale);
    match dtype {
        DType::F32 => output,
        dtype => B::float_cast(output, dtype.into()),
    }
}

/// A product that the recipe keeps in high precision.
pub(crate) fn multiply_high<B: Fp8Matmul>(
    role: GemmRole,
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    product.record_high_precision(role);
    B::fp8_plain_matmul(lhs, rhs)
}

fn transpose<B: Backend>(operand: Measured<B>) -> Measured<B> {
    operand.map(B::float_transpose)
}

impl Product {
    /// The operand as the product multiplies it: as a matrix where leading dimensions join M.
    fn join<B: Backend>(&self, operand: Measured<B>) -> Measured<B> {
        operand.map(|values| self.join_tensor::<B>(values))
    }

    pub(crate) fn join_tensor<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        match self.is_flat() {
            true => join::<B>(tensor),
            false => tensor,
        }
    }
}

fn matrix<B: Backend>(operand: Measured<B>) -> Measured<B> {
    operand.map(join::<B>)
}

/// Joins all dimensions but the last.
pub(crate) fn join<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let columns = shape[shape.num_dims() - 1];
    let rows = shape.num_elements() / columns;
    reshape::<B>(tensor, Shape::new([rows, columns]))
}

pub(crate) fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    match tensor.shape() == shape {
        true => tensor,
        false => B::float_reshape(tensor, shape),
    }
}

/// Sums a gradient over the dimensions along which its operand was broadcast, and gives it the operand's shape.
pub(crate) fn reduce<B: Backend>(mut grad: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
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
    use crate::matmul::operand::SavedCodes;

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
            let Forward { output, saved, .. } =
                forward::<Flex>(x.clone(), w.clone(), &product, save);
            assert_eq!(output.shape(), Shape::new([2, 16, 24]));
            for (saved, (save, elements)) in saved.iter().zip(save.iter().zip([1024, 768])) {
                assert_eq!(saved.is_some(), *save);
                let Some(saved) = saved else { continue };
                let SavedOperand::Fp8(SavedCodes { codes, .. }) = saved else {
                    panic!("in FP8");
                };
                let Codes::Bytes(codes, Fp8Format::E4M3) = codes else {
                    panic!("Flex holds bytes");
                };
                assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            }
        }
    }
}
