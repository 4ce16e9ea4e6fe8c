//! A product of given codes with its epilogue: what a backend is asked for, and its emulation.

use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Fp8Format, Overflow};

use super::matrix::{Otherwise, note};
use super::{Codes, Fp8Matmul, GemmNote, ScaleRule, add_bias, portable};
use crate::Scalar;
use crate::report::Ran;
use crate::scaled::Activation;

/// An operand: a matrix of codes, row by row, whose rows lie along K.
///
/// A backend with strided tensors may hold [`Codes::Bytes`] and [`Codes::Values`] as a view in another layout.
#[derive(Clone, Debug)]
pub struct ScaledOperand<B: Backend> {
    /// The codes.
    pub codes: Codes<B>,
    /// Their format.
    pub format: Fp8Format,
    /// Their scale.
    pub scale: Scalar<B>,
}

/// What is to be made of a product. [`scaled_matmul`](crate::scaled_matmul) has checked it.
#[derive(Clone, Debug)]
pub struct ScaledRequest<B: Backend> {
    /// The type of the result.
    pub output: OutputType<B>,
    /// A bias `[N]`: BF16 or F16 as cuBLASLt wants it, or F32 where the device has not got that. Not tracked.
    pub bias: Option<FloatTensor<B>>,
    /// What is applied after the bias.
    pub activation: Activation,
    /// Whether the amax is wanted. Only with FP8 output.
    pub amax: bool,
    /// Whether tensor cores may sum with fewer bits.
    pub fast_accumulation: bool,
    /// What becomes of it where there is no algorithm on tensor cores.
    pub otherwise: Otherwise,
    /// What the product tells a trace.
    pub note: Option<GemmNote>,
}

/// The type of the result of a product.
#[derive(Clone, Debug)]
pub enum OutputType<B: Backend> {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8.
    Fp8 {
        /// The format.
        format: Fp8Format,
        /// The dequantization multiplier of the result: its reciprocal is cuBLASLt's `D_SCALE`.
        scale: Scalar<B>,
    },
}

/// A product, as asked for.
#[derive(Clone, Debug)]
pub struct ScaledProduct<B: Backend> {
    /// The result `[M, N]`.
    pub values: ScaledValues<B>,
    /// Its amax before output scale and rounding, f32 `[1]`, where it was asked for.
    pub amax: Option<FloatTensor<B>>,
}

/// The result of a product.
#[derive(Clone, Debug)]
pub enum ScaledValues<B: Backend> {
    /// Of the type that was asked for.
    Float(FloatTensor<B>),
    /// Codes, row by row.
    Codes(Codes<B>),
}

/// `a` `[M, K]` times the transpose of `b_t` `[N, K]`, emulated in f32.
pub(crate) fn emulated<B: Fp8Matmul>(
    a: ScaledOperand<B>,
    b_t: ScaledOperand<B>,
    request: ScaledRequest<B>,
) -> ScaledProduct<B> {
    note(&request.note, || Ran::FakeQuantized);
    let b = B::float_transpose(B::fp8_values(b_t.codes));
    let product = B::fp8_plain_matmul(B::fp8_values(a.codes), b);
    let product = B::fp8_rescale(product, &a.scale, &b_t.scale);
    let bias = request.bias.map(|bias| B::float_cast(bias, FloatDType::F32));
    let product = activate::<B>(add_bias::<B>(product, bias), request.activation);
    let amax = request.amax.then(|| B::fp8_amax(product.clone()));
    let values = match request.output {
        OutputType::Float(FloatDType::F32) => ScaledValues::Float(product),
        OutputType::Float(dtype) => ScaledValues::Float(B::float_cast(product, dtype)),
        OutputType::Fp8 { format, scale } => {
            let (factor, one) = (reciprocal::<B>(scale), Scalar::Host(1.0));
            let scaled = B::fp8_rescale(product, &factor, &one);
            let scale = ScaleRule::Given(one, Overflow::Saturate);
            ScaledValues::Codes(B::fp8_quantize_codes(scaled, format, scale).0)
        }
    };
    ScaledProduct { values, amax }
}

/// `1 / scale`, as one f32.
pub(crate) fn reciprocal<B: Backend>(scale: Scalar<B>) -> Scalar<B> {
    match scale {
        Scalar::Host(scale) => Scalar::Host(1.0 / scale),
        Scalar::Device(scale) => {
            let device = B::float_device(&scale);
            Scalar::Device(B::float_div(
                portable::on_device::<B>(&Scalar::Host(1.0), &device),
                scale,
            ))
        }
    }
}

/// Applies an activation to an f32 tensor. NaN stays NaN.
fn activate<B: Backend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            // Not the backend's own: some take the maximum with 0, which loses NaN.
            let settings = burn::tensor::get_device_settings::<B>(&B::float_device(&x));
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
    let settings = burn::tensor::get_device_settings::<B>(&B::float_device(&x));
    let above = B::float_greater_elem(x.clone(), limit.into(), settings.bool_dtype);
    let below = B::float_lower_elem(x.clone(), (-limit).into(), settings.bool_dtype);
    let x = B::float_mask_fill(x, above, limit.into());
    B::float_mask_fill(x, below, (-limit).into())
}
