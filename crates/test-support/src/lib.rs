//! What tests of this workspace share.
//!
//! - [`Random`]: one generator of test data.
//! - [`hard`]: inputs that are hard: ties, subnormals, infinities, NaN, outliers.
//! - [`fp8`]: FP8 by definition, in f64: decode, encode by search, scales, what an operand holds under a recipe.
//! - [`Exact`], [`Sums`]: products and their gradients in f64, and how far from them sums in fewer bits may end.
//! - [`operations`]: attention, layer normalization, RMSNorm, GELU, SiLU, ReLU in f64, with their gradients.
//! - [`mod@assert`]: what is asserted of numbers, of errors and of panics.
//! - [`Golden`]: files that other libraries have computed.
//! - [`alone`], [`with_variable`], [`with_fault`]: tests in a process of their own.
//! - [`skip`], [`skip_unless_required`]: tests that cannot run on a machine say so, and are counted: a test that only returns early looks like
//!   one that passed.
//!
//! References take types of `burn-fp8-core` (formats, recipes) and call nothing of it.

pub mod assert;
pub mod exact;
pub mod fp8;
mod golden;
pub mod hard;
pub mod operations;
mod process;
mod random;
mod skip;

pub use assert::{
    assert_close, assert_relative, assert_same, assert_within, bits, comparable, panic_of, panics,
    refused, says, sqnr,
};
pub use exact::{Exact, Float, Sums, transpose};
pub use fp8::{FORMATS, OVERFLOWS, PAIRS};
pub use golden::Golden;
pub use operations::wide;
pub use process::{alone, with_fault, with_variable};
pub use random::Random;
pub use skip::{SKIPPED, skip, skip_unless_required};
