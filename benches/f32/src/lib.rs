//! What benchmarks run on plain Burn: a multi-layer perceptron, and products of the crate `gemm`, which multiplies f32 in Burn's Flex.
//!
//! The program of this package runs them as Burn builds them by default, for AVX2; in the benchmarks themselves, which depend on `burn-fp8`, the
//! same functions use AVX-512 where the CPU has it.

mod gemm;
mod mlp;

pub use gemm::Gemm;
pub use mlp::{BATCH, Data, Mlp, Model, WIDTHS, passes, steps};
