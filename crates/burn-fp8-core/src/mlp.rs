//! What the layers named `Fp8Mlp` take.

use serde::{Deserialize, Serialize};

/// What lies between the layers of an `Fp8Mlp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpActivation {
    /// `x · Φ(x)`, by the error function. That of BERT.
    Gelu,
    /// `x / (1 + e⁻ˣ)`. Gated, it is SwiGLU, that of Llama.
    Silu,
}
