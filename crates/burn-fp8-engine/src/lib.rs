//! What a backend of Burn 0.21 does with FP8 codes, whatever they are for: two verbs, to quantize and to multiply.
//!
//! [`Fp8Engine`] is what the author of a backend implements, or takes as it is with [`fp8_backend!`]. `burn-fp8` stands on it, and
//! so does `burn-fp8-fused`; their users find it as `burn_fp8::engine`.

#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod host;

#[doc(inline)]
pub use engine::*;
