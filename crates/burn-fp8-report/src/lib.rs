//! How well FP8 fits a model: what burn-fp8's observatory measures, its log and its page. Needs neither Burn nor a GPU.
//!
//! - [`sample`]: what quantization does to sampled operands and products, and what it would do otherwise; what the sums of
//!   tensor cores lose beside it.
//! - [`log`]: the log, JSON lines, and [`log::read`].
//! - [`Observations`]: all sites over time; [`ranked`](Observations::ranked) worst first, with [`Advice`]; printed as a table, or as a
//!   page by [`to_html`](Observations::to_html).
//! - [`memory`]: what a program holds, phase by phase, and a picture of it.

mod advice;
mod histogram;
pub mod log;
pub mod memory;
mod observations;
mod page;
pub mod sample;
mod sqnr;

pub use advice::{Advice, FP8_LAYER, LEAST_GAIN, POOR, Ranked, SUM_MARGIN, SplitSums};
pub use histogram::Histogram;
pub use observations::{Observations, OperandPoint, Point, SiteSeries, Summary};
pub use sqnr::{MatrixSqnr, Sqnr, rounding_limit};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
