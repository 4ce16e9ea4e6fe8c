//! What follows a product of codes, in tensor operations.

use burn_backend::{Backend, tensor::FloatTensor};

use crate::engine::product::Activation;
use crate::engine::scalar::{Scalar, ScalarOf};
use crate::host;

/// `1 / scale`, as one f32.
pub fn reciprocal<B: Backend>(scale: ScalarOf<B>) -> ScalarOf<B> {
    match scale {
        Scalar::Host(scale) => Scalar::Host(1.0 / scale),
        Scalar::Device(scale) => {
            let device = host::float_device::<B>(&scale);
            Scalar::Device(B::float_div(ScalarOf::<B>::Host(1.0).on_device::<B>(&device), scale))
        }
    }
}

/// Applies an activation to an f32 tensor. NaN stays NaN.
pub fn activate<B: Backend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            // Not the backend's own: some take the maximum with 0, which loses NaN.
            let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&x));
            let off = B::float_lower_equal_elem(x.clone(), 0f32.into(), settings.bool_dtype);
            B::float_mask_fill(x, off, 0f32.into())
        }
        Activation::Gelu => gelu::<B>(x),
    }
}

/// `x · ((1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2)`, in the order of JAX 0.10.2.
fn gelu<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
    let inner = B::float_add(x.clone(), B::float_mul_scalar(cube, 0.044715f32.into()));
    let inner = B::float_mul_scalar(inner, (2.0 / core::f32::consts::PI).sqrt().into());
    // The tanh of a GPU may be made of exponentials, which overflow; beyond 10 it is ±1 in f32.
    let inner = clamp::<B>(inner, 10.0);
    let half = B::float_add_scalar(B::float_tanh(inner), 1f32.into());
    B::float_mul(x, B::float_mul_scalar(half, 0.5f32.into()))
}

/// Limits magnitudes. What becomes of NaN is left open.
fn clamp<B: Backend>(x: FloatTensor<B>, limit: f32) -> FloatTensor<B> {
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&x));
    let above = B::float_greater_elem(x.clone(), limit.into(), settings.bool_dtype);
    let below = B::float_lower_elem(x.clone(), (-limit).into(), settings.bool_dtype);
    let x = B::float_mask_fill(x, above, limit.into());
    B::float_mask_fill(x, below, (-limit).into())
}
