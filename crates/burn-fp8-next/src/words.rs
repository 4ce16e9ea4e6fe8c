//! The words of Burn 0.22 and 0.23 for quantized tensors: their schemes, and how their data lies.

use burn_backend::quantization::{BlockSize, QuantScheme, QuantizedBytes, global_scale_dtype};
use burn_backend::{DType, Shape, TensorData};

pub(crate) use burn_backend::quantization::ScaleDtype as ScaleType;

/// Whether Burn computes the scales of blocks that have several rows.
pub(crate) const BLOCKS_HAVE_ROWS: bool = true;

/// Whether Flex computes with FP8 as its schemes say: those of which this crate holds no tensors go there.
pub(crate) const INSIDE_IS_RIGHT: bool = cfg!(feature = "burn-0-23");

/// Whether `quantize_dynamic` comes here, which takes the largest finite magnitude. Burn's clients measure by themselves.
pub(crate) const MEASURES_HERE: bool = false;

/// The elements that share a scale; without, all do.
pub(crate) fn block(scheme: &QuantScheme) -> Option<BlockSize> {
    scheme.block_size()
}

/// The scheme with blocks of this size.
pub(crate) fn by_blocks(scheme: QuantScheme, size: BlockSize) -> QuantScheme {
    scheme.per_block(size.as_slice(), scheme.scale_dtype())
}

/// The scheme of a tensor that is held here. Codes lie one byte each, and as it says in data.
pub(crate) fn stored(scheme: QuantScheme) -> QuantScheme {
    scheme
}

/// The same with its dimensions in another order, but for its blocks.
#[cfg(feature = "burn-0-23")]
pub(crate) fn permuted(mut scheme: QuantScheme, axes: &[usize]) -> QuantScheme {
    scheme.permute_dims(axes);
    scheme
}

#[cfg(not(feature = "burn-0-23"))]
pub(crate) fn permuted(scheme: QuantScheme, _axes: &[usize]) -> QuantScheme {
    scheme
}

/// The same with so many dimensions.
#[cfg(feature = "burn-0-23")]
pub(crate) fn reshaped(mut scheme: QuantScheme, rank: usize) -> QuantScheme {
    scheme.reshape_packing_dim(rank);
    scheme
}

#[cfg(not(feature = "burn-0-23"))]
pub(crate) fn reshaped(scheme: QuantScheme, _rank: usize) -> QuantScheme {
    scheme
}

/// What scales are held in, where there is one level of them.
pub(crate) fn scale_type(scheme: &QuantScheme) -> Option<ScaleType> {
    global_scale_dtype(scheme).is_none().then(|| scheme.scale_dtype())
}

/// A scale in a type of two bytes, as Burn holds it: one that is not there becomes the next larger one.
pub(crate) fn narrowed(scale: f32, of: ScaleType) -> f32 {
    of.round_up(scale)
}

/// The scheme of data, if it is quantized.
pub(crate) fn scheme(data: &TensorData) -> Option<QuantScheme> {
    match data.dtype() {
        DType::QFloat(scheme) => Some(scheme),
        _ => None,
    }
}

pub(crate) fn sizes(data: &TensorData) -> &[usize] {
    data.shape()
}

/// Codes row by row, and scales, in the type that the scheme says.
pub(crate) fn parts(data: TensorData, named: &QuantScheme, _scales: usize) -> (Vec<u8>, Vec<f32>) {
    let (bytes, shape, _) = data.into_parts();
    let (codes, scales) = QuantizedBytes { bytes, scheme: *named, shape }.into_vec_i8();
    (codes.into_iter().map(i8::cast_unsigned).collect(), scales.block)
}

/// The inverse.
pub(crate) fn data(
    codes: Vec<i8>,
    shape: Shape,
    scheme: QuantScheme,
    scales: &[f32],
) -> TensorData {
    TensorData::quantized(codes, shape, scheme, scales, None)
}
