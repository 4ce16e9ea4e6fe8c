//! What the tests of the observatory share.

use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::report::sample::{Alternative, Prediction, ProductStats};
use burn_fp8::report::{Observations, Observatory, ObservatoryOptions, named};

use super::{Random, tensor, values};

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
pub fn products<B: AutodiffBackend>([x, w, g]: &[Vec<f32>; 3]) -> [Vec<f32>; 3] {
    let x = tensor::<B, 2>(x, [M, K]).require_grad();
    let w = tensor::<B, 2>(w, [K, N]).require_grad();
    let y = named("up", || x.clone().matmul(w.clone()));
    let gradients = (y.clone() * tensor(g, [M, N])).sum().backward();
    let grad = |tensor: &Tensor<B, 2>| values(tensor.grad(&gradients).expect("tracked"));
    [values(y.inner()), grad(&x), grad(&w)]
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
