//! Where a product runs: natively or emulated, as it was decided when it was planned, with scales as the recipe has them.

use burn::tensor::Shape;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Granularity;

use super::blocks::{self, Blocks};
use super::emulated::Emulated;
use super::gemms::{self, Forward, Gradients};
use super::native::Native;
use super::operand::SavedOperand;
use super::plan::Product;
use super::rowwise::{OfCodes, Rowwise};
use super::scheme::Path;
use super::units::Units;
use crate::engine::Fp8Engine;
use crate::engine::tensor::add_bias;

/// Calls a function of [`gemms`] with the scheme that the product is for.
macro_rules! on_scheme {
    ($product:expr, $function:ident($($argument:expr),*) $(, $save:expr)?) => {{
        let gemms = &$product.gemms;
        match (&gemms.path, gemms.recipe.granularity()) {
            (Path::Native, Granularity::Mx(_) | Granularity::Blockwise) => {
                gemms::$function::<B, _, Blocks<blocks::OfTensorCores>>($($argument,)* $product, gemms $(, $save)?)
            }
            (Path::Native, _) => {
                gemms::$function::<B, _, Native>($($argument,)* $product, gemms $(, $save)?)
            }
            (Path::MatrixUnit, Granularity::PerTensor) => {
                gemms::$function::<B, _, Units>($($argument,)* $product, gemms $(, $save)?)
            }
            (Path::MatrixUnit, Granularity::PerRow) => {
                gemms::$function::<B, _, Rowwise<OfCodes>>($($argument,)* $product, gemms $(, $save)?)
            }
            (Path::MatrixUnit, Granularity::Mx(_) | Granularity::Blockwise) => {
                gemms::$function::<B, _, Blocks<blocks::OfCodes>>($($argument,)* $product, gemms $(, $save)?)
            }
            (_, Granularity::Mx(_) | Granularity::Blockwise) => {
                gemms::$function::<B, _, Blocks>($($argument,)* $product, gemms $(, $save)?)
            }
            (_, Granularity::PerTensor) => {
                gemms::$function::<B, _, Emulated>($($argument,)* $product, gemms $(, $save)?)
            }
            (_, Granularity::PerRow) => {
                gemms::$function::<B, _, Rowwise>($($argument,)* $product, gemms $(, $save)?)
            }
        }
    }};
}

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`.
pub(crate) fn matmul<B: Fp8Engine>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    forward::<B>(lhs, rhs, product, [false, false]).output
}

/// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`.
pub(crate) fn linear<B: Fp8Engine>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    product: &Product,
) -> FloatTensor<B> {
    add_bias::<B>(matmul::<B>(x, weight, product), bias)
}

/// A product of the forward pass, which keeps the operands that `save` asks for.
pub(crate) fn forward<B: Fp8Engine>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
    save: [bool; 2],
) -> Forward<B> {
    on_scheme!(product, forward(lhs, rhs), save)
}

/// The gradients of the operands of a forward product.
pub(crate) fn backward<B: Fp8Engine>(
    output_grad: FloatTensor<B>,
    saved: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
    product: &Product,
) -> Gradients<B> {
    on_scheme!(product, backward(output_grad, saved, shapes))
}

/// `output_grad` `[…, N]` times `weight` `[K, N]` transposed.
pub(crate) fn linear_x_backward<B: Fp8Engine>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    on_scheme!(product, linear_x_backward(weight, output_grad))
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions.
pub(crate) fn linear_weight_backward<B: Fp8Engine>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    on_scheme!(product, linear_weight_backward(x, output_grad))
}
