//! FP8 numerics that need neither Burn nor a GPU.
//!
//! - [`Fp8Format`]: E4M3 and E5M2 as numbers: limits, scalar encode and decode.
//! - [`element`]: the arithmetic of one element, for loops of kernels.
//! - [`Recipe`], [`AmaxHistory`], [`scale`], [`e8m0`]: how a scale is derived from an amax.
//! - [`Pointwise`]: operations on single elements.
//! - [`AttentionShape`], [`AttentionPrecision`]: what attention takes and multiplies. [`MlpActivation`]: what lies between two layers. [`Dropout`]: which elements a counter-based generator drops.
//! - [`Sums`](sums::Sums), [`Accumulator`](sums::Accumulator): how tensor cores add.
//! - [`peers`]: what those that train one model together say to each other.
//! - [`Gemm`], [`GemmRole`], [`Filter`], [`Gains`]: matrix products, their roles in training, which of them run in FP8, and what that gains.
//!
//! What computes over slices, and all kernels, are in the crate `burn-fp8-cpu`. A *scale* is always the dequantization multiplier: `x ≈ code × scale`.

mod attention;
mod dropout;
pub mod e8m0;
pub mod element;
mod filter;
#[cfg(feature = "float8")]
pub mod float8;
mod format;
mod gains;
mod gemm;
mod history;
#[doc(hidden)]
pub mod json;
pub mod peers;
mod recipe;
pub mod scale;
pub mod sums;
#[doc(hidden)]
pub mod text;

pub use attention::{
    AttentionPrecision, AttentionShape, AttentionShapeError, ParseAttentionPrecisionError,
};
pub use dropout::{Dropout, DropoutError, MlpActivation, Norm, Pointwise, Saved, Softmax};
pub use filter::{Filter, NamedWeight, Rejection};
pub use format::{FormatInfo, Fp8Format, Overflow, ParseFp8FormatError};
pub use gains::{Gains, GainsError};
pub use gemm::{Gemm, GemmRole, Layouts, Operand, PADDING, ProductKind};
pub use history::AmaxHistory;
pub use recipe::{
    AmaxChoice, Block, Delayed, Formats, Granularity, Precision, Products, Recipe, RecipeError,
    ScaleRounding, Scaling,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
