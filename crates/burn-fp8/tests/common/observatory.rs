//! What the tests of the observatory share.

use burn_fp8::report::sample::{Alternative, Prediction, ProductStats};
use burn_fp8::report::{Observations, Observatory, ObservatoryOptions, named};

use super::*;

pub const M: usize = 20;
pub const K: usize = 24;
pub const N: usize = 16;

pub fn every_step() -> Observatory {
    Observatory::new(ObservatoryOptions::default().with_every(1)).expect("valid options")
}

pub fn operands(seed: u64) -> [Vec<f32>; 3] {
    let mut random = Random(seed);
    [M * K, K * N, M * N].map(|count| random.spread(count))
}

/// `x · w`, and the gradients of both for a given gradient of the result.
pub fn products<B: AutodiffBackend>(tensors: &[Vec<f32>; 3]) -> [Vec<f32>; 3] {
    named("up", || matrix_step::<B>(tensors.each_ref().map(Vec::as_slice), [M, K, N]))
}

pub fn decibels(stats: Option<&ProductStats>) -> f64 {
    stats.expect("measured").sqnr.whole.decibels().expect("a signal")
}

pub fn predicted(stats: Option<&ProductStats>, alternative: Alternative) -> f64 {
    let is_it = |prediction: &&Prediction| prediction.alternative == alternative;
    let prediction = stats.expect("measured").alternatives.iter().find(is_it);
    prediction.expect("predicted").sqnr.whole.decibels().expect("a signal")
}

pub fn sites(observatory: &Observatory) -> Observations {
    assert_eq!(observatory.failure(), None);
    observatory.report()
}
