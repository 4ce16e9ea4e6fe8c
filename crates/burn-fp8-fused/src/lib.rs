//! Attention, layer and RMS normalization, softmax, GELU, SiLU, dropout and gated MLPs as one operation each, for any model on Burn 0.21; in FP8 where it is asked for.
//!
//! - [`ops`] has the operations: on Flex kernels that use all threads and keep no scores, elsewhere tensor operations.
//! - [`nn`] has layers that stand in for Burn's, with the same records.
//! - [`Graph`] is the bound of generic code. `burn-fp8` runs the same operations under its decorator where its configuration says so.

mod fused;
pub mod nn;
pub mod ops;

pub use burn_fp8_core::{AttentionPrecision, Dropout, Pointwise, Saved, Softmax};
pub(crate) use burn_fp8_engine as engine;
pub use burn_fp8_engine::Graph;
pub(crate) use burn_fp8_engine::host;
pub use fused::{Attention, AttentionGradients, AttentionOf, attention_to_codes};
#[doc(hidden)]
pub use fused::{
    attention, bernoulli, layer_norm, pointwise, pointwise_backward, self_attention, softmax,
};
