//! What ran where, and how well FP8 fits.
//!
//! - [`trace`](trace()) records every product of a closure: role, shape, formats, scales, what ran it, and if not in FP8, why.
//! - [`Observatory`] samples a training run: SQNR, amax, scale, flushed and saturated shares, exponent histograms of every site
//!   over time, with advice measured on the same samples. It keeps [`Observations`], logs them as JSON lines ([`log`]) and draws
//!   them as one HTML page ([`Observations::to_html`]; `cargo xtask report LOG`).
//! - [`memory`] profiles what a training holds, phase by phase, and draws it.
#![cfg_attr(feature = "train", doc = "- [`metric`] shows them in Burn's `Learner`.")]
//!
#![doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/report.md"))]

mod observatory;
mod product;
mod trace;

pub use burn_fp8_report::{
    Advice, FP8_LAYER, Histogram, LEAST_GAIN, MatrixSqnr, Observations, OperandPoint, POOR, Point,
    Ranked, SUM_MARGIN, SiteSeries, SplitSums, Sqnr, Summary, log, memory, rounding_limit, sample,
};
#[cfg(feature = "train")]
pub use observatory::metric;
pub use observatory::{Observatory, ObservatoryOptions, named};
pub(crate) use observatory::{Quantization, Tap, observe};
pub use product::{
    Epilogue, HighPrecision, Implementation, OperandReport, ProductReport, Site, SiteStatus,
};
pub(crate) use trace::{
    Pending, PendingOperand, PendingRan, is_tracing, new_note, note_saved_whole, record,
    record_high_precision, record_with_epilogue,
};
pub use trace::{Report, own_product, trace};
