//! Attention to keys and values in FP8.

use burn::tensor::Tensor;
use burn_fp8_core::{AttentionPrecision, AttentionShape};

use super::float;
use crate::engine::Graph;
use crate::fused;
use crate::fused::ops::AttentionOptions;
use crate::host::primitive;
use crate::tensor::Fp8Tensor;

/// Attention to keys and values in FP8 with a scale for each row, as [`Fp8Tensor::quantize_rows`] makes them: what a cache holds in a quarter of the memory
/// of f32. Shapes and result are those of [`attention`](crate::fused::ops::attention). On Flex they are converted a tile at a time, elsewhere before. Products are f32. Keys and values get no gradients.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8::fused::ops::AttentionOptions;
/// use burn_fp8::ops::attention_to_fp8;
/// use burn_fp8::{Fp8Format, Fp8Tensor};
///
/// let device = Default::default();
/// let heads = |count, length| {
///     Tensor::<Flex, 4>::random([1, count, length, 32], Distribution::Default, &device)
/// };
/// let row_by_row = |heads| Fp8Tensor::quantize_rows(heads, Fp8Format::E4M3);
/// let (keys, values) = (row_by_row(heads(2, 10))?, row_by_row(heads(2, 10))?);
/// let y = attention_to_fp8(heads(8, 1), &keys, &values, AttentionOptions::default());
/// assert_eq!(y.dims(), [1, 8, 1, 32]);
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
///
/// # Panics
/// As [`attention`](crate::fused::ops::attention), and where dropout or a precision is asked for.
pub fn attention_to_fp8<B: Graph>(
    q: Tensor<B, 4>,
    k: &Fp8Tensor<B, 4>,
    v: &Fp8Tensor<B, 4>,
    options: AttentionOptions<B>,
) -> Tensor<B, 4> {
    assert!(
        options.dropout.is_none() && options.precision == AttentionPrecision::High,
        "attention to keys and values in FP8 has neither dropout nor another precision than f32"
    );
    let shape = AttentionShape::new(q.dims(), k.dims(), v.dims());
    shape.unwrap_or_else(|error| panic!("{error}"));
    let attention = options.into_attention(q.dims());
    let kv = [k, v].map(|x| x.matrix().clone());
    float(fused::attention_to_codes::<B>(primitive(q), kv, attention))
}
