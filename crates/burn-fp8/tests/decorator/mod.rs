//! The decorator: which products run in FP8, and what comes of them.

mod bf16;
mod config;
mod convolutions;
mod diagnostics;
#[cfg(feature = "ndarray")]
mod empty;
mod except;
mod join;
mod linalg;
mod messages;
mod off_is_identity;
mod products;
mod quantized;
mod reports;
mod routing;
mod scopes;
mod shapes;
mod special_values;
mod sqnr;
mod sums;
mod units;
#[cfg(feature = "vision")]
mod vision;
