//! Operations on single elements.

use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use burn_fp8_core::{Dropout, Pointwise};

use super::float;
use crate::host::primitive;
use crate::product::Fp8Products;

/// `x · (1 + erf(x / √2)) / 2`, as `burn::tensor::activation::gelu`: one operation forward and one backward, in f32, on all threads of Flex.
///
/// `x` is of any shape and float type, which the result has.
pub fn gelu<B: Fp8Products, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    float(B::fp8_pointwise_op(Pointwise::Gelu, primitive(x)))
}

/// `x / (1 + e⁻ˣ)`, as `burn::tensor::activation::silu`, also called swish: one operation as [`gelu`] is.
///
/// `x` is of any shape and float type, which the result has.
pub fn silu<B: Fp8Products, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    float(B::fp8_pointwise_op(Pointwise::Silu, primitive(x)))
}

/// Drops elements with this probability in training, on a backend with gradients, and multiplies the others by one over the probability to be kept;
/// `x` as it is elsewhere. As `burn::nn::Dropout`, by a generator whose decisions are computed again in the backward pass, not kept.
///
/// The seed comes from the backend's generator, which `B::seed` sets: reading it waits for the device. On other backends than Flex the decisions are made on the
/// host, forward and backward, and handed to the device.
///
/// # Panics
/// Where the probability is not in `[0, 1)`.
pub fn dropout<B: Fp8Products, const D: usize>(x: Tensor<B, D>, probability: f64) -> Tensor<B, D> {
    match draw::<B>(probability, &x.device()) {
        Some(dropout) => float(B::fp8_pointwise_op(Pointwise::Dropout(dropout), primitive(x))),
        None => x,
    }
}

/// Dropout of this probability, with a seed from the backend's generator; none at 0, or on a backend without gradients.
pub(super) fn draw<B: Backend>(probability: f64, device: &B::Device) -> Option<Dropout> {
    if probability == 0.0 || !B::ad_enabled(device) {
        return None;
    }
    let range = Distribution::Uniform(0.0, f64::from(1 << 24));
    let halves = Tensor::<B, 1>::random([2], range, device).into_data();
    let seed = halves.iter::<f64>().fold(0, |seed, half| seed << 24 | half as u64);
    Some(Dropout::new(probability, seed).unwrap_or_else(|error| panic!("{error}")))
}
