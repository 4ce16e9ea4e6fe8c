//! What a sensitivity run has found.

use examples_common::Origin;

use crate::child::mean;
use crate::high::High;
use crate::precision::Precision;

/// One way to train, with all seeds.
pub struct Variant {
    /// What it computes with.
    pub precision: Precision,
    /// What stays out of FP8.
    pub high: Option<High>,
    /// The final validation loss of each seed.
    pub losses: Vec<f64>,
    /// How much lower each seed's loss is than with everything in FP8: the same weights and the same order, so that only the precision
    /// differs.
    pub gains: Vec<f64>,
    /// The share of matrix FLOPs in FP8.
    pub fp8_share: f64,
}

impl Variant {
    /// What the variant is called in the table.
    pub fn name(&self) -> String {
        match self.high {
            Some(high) => high.to_string(),
            None if self.precision.is_fp8() => format!("nothing ({})", self.precision),
            None => format!("everything ({})", self.precision),
        }
    }

    /// The mean gain.
    pub fn gain(&self) -> f64 {
        mean(self.gains.iter().copied())
    }

    /// The smallest and the largest gain; NaN where a seed diverged.
    pub fn range(&self) -> (f64, f64) {
        if self.gains.iter().any(|gain| gain.is_nan()) {
            return (f64::NAN, f64::NAN);
        }
        let fold = |(low, high): (f64, f64), gain: &f64| (low.min(*gain), high.max(*gain));
        self.gains.iter().fold((f64::INFINITY, f64::NEG_INFINITY), fold)
    }

    /// Whether all seeds agree on the sign of the gain, which those that diverged do not; none where one seed can say nothing about noise.
    pub fn seeds_agree(&self) -> Option<bool> {
        let all = |is: fn(f64) -> bool| self.gains.iter().all(|gain| is(*gain));
        (self.gains.len() > 1).then(|| all(|gain| gain > 0.0) || all(|gain| gain < 0.0))
    }
}

/// A sensitivity run.
pub struct Ranking {
    /// What it was measured with.
    pub origin: Origin,
    /// The FP8 precision that parts are left out of.
    pub precision: Precision,
    /// The name of the size.
    pub size: String,
    /// The seeds of each variant.
    pub seeds: Vec<u64>,
    /// Epochs of each run.
    pub epochs: usize,
    /// The variants, the largest mean gain first.
    pub variants: Vec<Variant>,
}
