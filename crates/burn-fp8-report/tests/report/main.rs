//! The observatory: measurements, logs and pages.

mod common;
mod log;
mod page;
mod statistics;
mod sums;
