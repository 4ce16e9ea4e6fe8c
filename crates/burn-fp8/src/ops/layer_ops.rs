//! The operations of FP8 layers on a backend: with backward steps of their own where it tracks gradients.

use burn::tensor::FloatDType;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::dot::{self, Source};
use super::forward;
use super::options::{DotOptions, QdqOptions};
use crate::engine::{Fp8Engine, Untracked};

/// The operations of [`ops`](crate::ops), and the product of the layers of [`nn`](crate::nn).
///
/// A backend without gradients quantizes and multiplies. `Autodiff<B>` does so on `B`, and registers backward steps that give the
/// state its new values.
pub trait Fp8LayerOps: Fp8Engine {
    /// [`ops::quantize_dequantize`](crate::ops::quantize_dequantize).
    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        forward::quantize_dequantize::<Self>(x, scale, format, compute_dtype)
    }

    /// [`ops::in_qdq`](crate::ops::in_qdq); `state` is the scale and the amax history.
    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        forward::in_qdq::<Self>(x, state, options).0
    }

    /// [`ops::out_qdq`](crate::ops::out_qdq); `state` is the scale and the amax history.
    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        let _ = (state, options);
        x
    }

    /// The product of [`nn::Fp8DotGeneral`](crate::nn::Fp8DotGeneral): `x` `[…, K]` times `kernel` `[K, N]`, neither empty, both of one
    /// type;
    /// `states` are scale and amax history of input, kernel and output gradient.
    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        let [input, kernel_state, _] = states;
        let (states, sources) = ([input, kernel_state], [Source::Still; 3]);
        dot::forward::<Self>(x, kernel, states, sources, options, [false, false]).output
    }
}

impl<B: Untracked> Fp8LayerOps for B {}
