//! What the FP8 layers need of a backend, for `Fp8Backend<B>`: it is what `B` does.

use burn::tensor::FloatDType;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::{Fp8Backend, Fp8Matmul};
use crate::ops::{DotOptions, Fp8LayerOps, QdqOptions};

impl<B: Fp8Matmul> Fp8LayerOps for Fp8Backend<B> {
    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        B::fp8_quantize_dequantize(x, scale, format, compute_dtype)
    }

    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        B::fp8_in_qdq(x, state, options)
    }

    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        B::fp8_out_qdq(x, state, options)
    }

    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        B::fp8_dot(x, kernel, states, options)
    }
}
