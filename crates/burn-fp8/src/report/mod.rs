//! What ran where, and how well FP8 fits.
//!
//! - [`trace`](trace()) records every product of a closure: role, shape, formats, scales, what ran it, and if not in FP8, why.
//! - [`Observatory`] samples a training run: SQNR, amax, scale, flushed and saturated shares, exponent histograms of every site
//!   over time, with advice measured on the same samples. It keeps [`Observations`], logs them as JSON lines ([`log`]) and draws
//!   them as one HTML page ([`Observations::to_html`]; `cargo xtask report LOG`).
#![cfg_attr(feature = "train", doc = "- [`metric`] shows them in Burn's `Learner`.")]
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::Fp8Backend;
//! use burn_fp8::report::{Observatory, ObservatoryOptions, log, named};
//!
//! type B = Fp8Backend<Autodiff<Flex>>;
//! # let folder = std::env::temp_dir().join(format!("burn-fp8-report-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("a folder");
//! # let path = folder.join("run.jsonl");
//! # std::fs::remove_file(&path).ok();
//! let device = Default::default();
//! let layer = LinearConfig::new(64, 32).init::<B>(&device);
//! let options = ObservatoryOptions::default().with_every(100).with_log(&path); // "run.jsonl"
//! let observatory = Observatory::new(options)?;
//! for _ in 0..201 {
//!     observatory.step(|| {
//!         let x = Tensor::<B, 2>::random([16, 64], Distribution::Default, &device);
//!         named("head", || layer.forward(x)).powi_scalar(2).mean().backward()
//!     });
//! }
//! println!("{}", observatory.report()); // products, the one that FP8 fits worst first, with advice
//!
//! let seen = log::read(&path)?; // later, or elsewhere
//! assert_eq!((seen.steps, seen.sites.len()), (3, 1));
//! std::fs::write(path.with_extension("html"), seen.to_html())?; // as `cargo xtask report run.jsonl` does
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod observatory;
mod product;
mod trace;

pub use burn_fp8_report::{
    Advice, FP8_LAYER, Histogram, MatrixSqnr, Observations, OperandPoint, POOR, Point, Ranked,
    SiteSeries, Sqnr, Summary, WORTHWHILE, log, rounding_limit, sample,
};
#[cfg(feature = "train")]
pub use observatory::metric;
pub use observatory::{Observatory, ObservatoryOptions, named};
pub(crate) use observatory::{Quantization, Tap, observe};
pub use product::{
    Epilogue, HighPrecision, Implementation, OperandReport, ProductReport, Site, SiteStatus,
};
pub(crate) use trace::{
    Pending, PendingOperand, PendingRan, is_tracing, new_note, record, record_high_precision,
    record_with_epilogue,
};
pub use trace::{Report, trace};
