//! Where a product runs: natively or emulated, as it was decided when it was planned, with scales as the recipe has them.

use burn::tensor::Shape;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Granularity;

use super::emulated::Emulated;
use super::native::Native;
use super::product::Path;
use super::products::{self, Forward, Gradients, add_bias};
use super::rowwise::Rowwise;
use super::{Fp8Matmul, Product, SavedOperand};

/// Calls a function of [`products`] with the engine that the product is for.
macro_rules! on_engine {
    ($product:expr, $function:ident($($argument:expr),*)) => {
        match ($product.path(), $product.recipe().granularity()) {
            (Path::Native, _) => products::$function::<B, Native>($($argument),*),
            (_, Granularity::PerTensor) => products::$function::<B, Emulated>($($argument),*),
            (_, Granularity::PerRow) => products::$function::<B, Rowwise>($($argument),*),
        }
    };
}

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`.
pub(crate) fn matmul<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    forward::<B>(lhs, rhs, product, [false, false]).output
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

/// A product of the forward pass, which keeps the operands that `save` asks for.
pub(crate) fn forward<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
    save: [bool; 2],
) -> Forward<B> {
    on_engine!(product, forward(lhs, rhs, product, save))
}

/// The gradients of the operands of a forward product.
pub(crate) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    saved: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
    product: &Product,
) -> Gradients<B> {
    on_engine!(product, backward(output_grad, saved, shapes, product))
}

/// `output_grad` `[…, N]` times `weight` `[K, N]` transposed.
pub(crate) fn linear_x_backward<B: Fp8Matmul>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    on_engine!(product, linear_x_backward(weight, output_grad, product))
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions.
pub(crate) fn linear_weight_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    on_engine!(product, linear_weight_backward(x, output_grad, product))
}
