//! The last sampled step in a few numbers.

use burn_fp8_core::{GemmRole, Operand};

use crate::Observations;
use crate::sample::OperandStats;

/// The last sampled step in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The step.
    pub step: u64,
    /// The lowest SQNR of a product, in dB; infinite where all are exact, `None` where none has a signal.
    pub worst_sqnr: Option<f64>,
    /// The mean of the SQNRs in dB of the products that are not exact; `None` where there are none.
    pub mean_sqnr: Option<f64>,
    /// The share of the sampled elements of all operands that were flushed to zero.
    pub flushed: f64,
    /// The share that saturated.
    pub saturated: f64,
    /// The share that is infinite or NaN.
    pub non_finite: f64,
}

impl Observations {
    /// The last sampled step; `None` where nothing was sampled.
    pub fn summary(&self) -> Option<Summary> {
        let [_, step] = self.span?;
        let products =
            self.latest().flat_map(|entry| GemmRole::ALL.map(|role| entry.products.of(role)));
        let sqnrs: Vec<f64> =
            products.flatten().filter_map(|stats| stats.sqnr.decibels()).collect();
        let finite: Vec<f64> = sqnrs.iter().copied().filter(|sqnr| sqnr.is_finite()).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;

        let operands =
            || self.latest().flat_map(|entry| Operand::ALL.map(|o| entry.operands.of(o))).flatten();
        // In f64: counts are at most 2^53, their sums may be more than u64 has.
        let sum =
            |count: fn(&OperandStats) -> u64| operands().map(|o| count(o) as f64).sum::<f64>();
        let sampled = sum(|stats| stats.sampled).max(1.0);
        Some(Summary {
            step,
            worst_sqnr: sqnrs.iter().copied().reduce(f64::min),
            mean_sqnr: (!finite.is_empty()).then_some(mean),
            flushed: sum(|stats| stats.flushed) / sampled,
            saturated: sum(|stats| stats.saturated) / sampled,
            non_finite: sum(|stats| stats.non_finite) / sampled,
        })
    }
}
