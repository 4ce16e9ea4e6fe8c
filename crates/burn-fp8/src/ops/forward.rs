//! What the operations do going forward, on a backend without gradients.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};
use burn_fp8_core::Fp8Format;

use super::flax;
use super::options::QdqOptions;
use crate::engine::{Fp8Engine, Wanted, decode};

pub(crate) fn quantize_dequantize<B: Fp8Engine>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    format: Fp8Format,
    compute_dtype: FloatDType,
) -> FloatTensor<B> {
    let quantized = flax::quantize::<B>(&x, scale.clone(), format, compute_dtype, Wanted::Values);
    flax::dequantize::<B>(decode::<B>(quantized), scale, x.dtype())
}

/// `x` quantized and dequantized with its new scale, and the new state.
pub(crate) fn in_qdq<B: Fp8Engine>(
    x: FloatTensor<B>,
    state: [FloatTensor<B>; 2],
    options: QdqOptions,
) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let [scale, history] = flax::update::<B>(&x, state, options);
    let compute_dtype = options.compute_dtype.unwrap_or_else(|| x.dtype().into());
    let y = quantize_dequantize::<B>(x, scale.clone(), options.format, compute_dtype);
    (y, [scale, history])
}
