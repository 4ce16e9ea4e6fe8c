//! What a sensitivity run has found.

use examples_common::Origin;
use serde::{Deserialize, Serialize};

use crate::arm::Arm;
use crate::high::High;
use crate::precision::Precision;
use crate::run::mean;
use crate::size::Size;

/// One way to train, with all seeds.
#[derive(Serialize, Deserialize)]
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
    /// Their mean.
    pub mean_gain: f64,
    /// Whether all seeds agree on the sign of the gain, which those that diverged do not; none where one seed can say nothing about noise.
    pub seeds_agree: Option<bool>,
    /// The share of matrix FLOPs in FP8.
    pub fp8_share: f64,
}

impl Variant {
    /// From what its seeds came to.
    pub fn new(arm: Arm, losses: Vec<f64>, gains: Vec<f64>, fp8_share: f64) -> Self {
        let Arm { precision, high } = arm;
        let mean_gain = mean(gains.iter().copied());
        let all = |is: fn(&f64) -> bool| gains.iter().all(is);
        let seeds_agree =
            (gains.len() > 1).then(|| all(|gain| *gain > 0.0) || all(|gain| *gain < 0.0));
        Self { precision, high, losses, gains, mean_gain, seeds_agree, fp8_share }
    }

    /// What the variant is called in the table.
    pub fn name(&self) -> String {
        match self.high {
            Some(high) => high.to_string(),
            None if self.precision.is_fp8() => format!("nothing ({})", self.precision),
            None => format!("everything ({})", self.precision),
        }
    }

    /// The smallest and the largest gain; NaN where a seed diverged.
    pub fn range(&self) -> (f64, f64) {
        if self.gains.iter().any(|gain| gain.is_nan()) {
            return (f64::NAN, f64::NAN);
        }
        let fold = |(low, high): (f64, f64), gain: &f64| (low.min(*gain), high.max(*gain));
        self.gains.iter().fold((f64::INFINITY, f64::NEG_INFINITY), fold)
    }
}

/// A sensitivity run: `sensitivity.json`.
#[derive(Serialize, Deserialize)]
pub struct Ranking {
    /// What it was measured with.
    pub origin: Origin,
    /// The FP8 precision that parts are left out of.
    pub precision: Precision,
    pub size: Size,
    /// The seeds of each variant.
    pub seeds: Vec<u64>,
    /// Epochs of each run.
    pub epochs: usize,
    /// The variants, the largest mean gain first.
    pub variants: Vec<Variant>,
}
