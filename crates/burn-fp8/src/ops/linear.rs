//! A linear layer whose weight is of another float type than its input.

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::float;
use crate::engine::tensor::{join, reshape};
use crate::engine::{Fp8Engine, multiply_high};
use crate::host::primitive;

/// `x` `[…, K]` times a weight `[N, K]` transposed, of any float type: `[…, N]` of the type of `x`, in which it is computed.
///
/// On Flex a weight in bf16 or f16 is converted while it is multiplied, where it lies: one row of f32 takes as long as reading the weight. Elsewhere it is
/// converted some rows at a time. Gradients reach both.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{FloatDType, Tensor};
/// use burn_fp8::ops::linear_mixed;
///
/// let device = Default::default();
/// let weight = Tensor::<Flex, 2>::from_data([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &device);
/// let x = Tensor::<Flex, 2>::from_data([[10.0, 1.0]], &device);
/// let y = linear_mixed(x, weight.cast(FloatDType::BF16));
/// assert_eq!(y.into_data().to_vec::<f32>().unwrap(), [12.0, 34.0, 56.0]);
/// ```
///
/// # Panics
/// Where the weight has another K than `x`.
pub fn linear_mixed<B: Fp8Engine, const D: usize>(
    x: Tensor<B, D>,
    weight: Tensor<B, 2>,
) -> Tensor<B, D> {
    let ([n, k], mut shape) = (weight.dims(), x.shape());
    assert!(shape[D - 1] == k, "a weight of [{n}, {k}] takes […, {k}], not {:?}", x.dims());
    shape[D - 1] = n;
    if shape.num_elements() == 0 || k == 0 {
        return Tensor::zeros(shape, (&x.device(), x.dtype()));
    }
    let product: FloatTensor<B> =
        multiply_high::<B>(join::<B>(primitive(x)), primitive(weight.transpose()));
    float(reshape::<B>(product, shape))
}
