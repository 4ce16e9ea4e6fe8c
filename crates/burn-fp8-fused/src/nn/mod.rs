//! Layers that stand in for those of Burn.

mod attention;
mod mlp;
mod norm;

pub use attention::{AttentionInput, FusedAttention, FusedAttentionConfig};
pub use burn_fp8_core::MlpActivation;
pub use mlp::{FusedMlp, FusedMlpConfig};
pub use norm::FusedRmsNorm;
