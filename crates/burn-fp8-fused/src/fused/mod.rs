//! Attention, normalization, softmax and operations on single elements as one operation each.
//!
//! Over the memory of Flex they are kernels of `burn-fp8-cpu`, elsewhere tensor operations. Attention quantizes what it multiplies where its precision says so.

mod attention;
#[cfg(feature = "flex")]
mod flex;
mod kept;
mod norm;
mod ops;
mod options;
mod pointwise;
mod portable;
mod softmax;

pub use attention::attention_to_codes;
pub use ops::{
    attention, bernoulli, gated, layer_norm, pointwise, rms_norm, seed, self_attention, softmax,
};
pub use options::{Attention, AttentionGradients, AttentionOf};
pub use pointwise::pointwise_backward;
