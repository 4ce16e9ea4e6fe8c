//! How it is noticed that new values of a layer's state were added or averaged, where they combine by maximum.
//!
//! Whoever accumulates gradients may not know that FP8 state is among them. So a new value travels as two rows: the value, and its square
//! root. The root of a maximum is the maximum of the roots. The root of a sum or of a mean is not the sum or the mean of the roots, unless
//! the values are nearly equal: then it makes hardly a difference. And an optimizer that steps a parameter `[1, n]` with a gradient `[2, n]`
//! makes it `[2, n]`, which the layer notices.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::flax;
use crate::host::primitive;

/// A new value `[n]` with its check row: `[2, n]`.
pub(super) fn with_check_row<B: Backend>(value: FloatTensor<B>) -> FloatTensor<B> {
    let value = flax::vector::<B>(value).unsqueeze::<2>();
    let root = value.clone().sqrt();
    primitive(Tensor::cat(vec![value, root], 0))
}

/// Whether the entry of a check row still belongs to its value: is the square root as a device computes it, to a few units in the last place.
///
/// A mean of two values that are less than half a percent apart may pass for one of them. The root of NaN is NaN, that of infinity infinity.
pub(crate) fn is_intact(value: f32, check: f32) -> bool {
    let exact = value.sqrt();
    check == exact || (check.is_nan() && exact.is_nan()) || (check - exact).abs() <= 5e-7 * exact
}
