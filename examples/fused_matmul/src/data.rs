//! Inputs and weights, and the same products in f64.

use burn_fp8::Activation;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A matrix, row by row.
#[derive(Clone, Debug)]
pub struct Matrix<T> {
    /// The elements.
    pub values: Vec<T>,
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// Numbers that depend on the seed alone.
pub struct Random(StdRng);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Normally distributed, nearly: the sum of twelve uniform numbers has variance 1.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    /// Numbers of this standard deviation.
    pub fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| deviation * self.normal()).collect()
    }

    /// A matrix of numbers of this standard deviation.
    pub fn matrix(&mut self, shape: [usize; 2], deviation: f32) -> Matrix<f32> {
        Matrix { values: self.normals(shape[0] * shape[1], deviation), shape }
    }
}

/// `activation(x · wᵀ + bias)` in f64: `x` `[M, K]`, `w` `[N, K]`.
pub fn linear(
    x: &Matrix<f64>,
    w: &Matrix<f64>,
    bias: Option<&[f32]>,
    activation: Activation,
) -> Matrix<f64> {
    let ([m, k], [n, _]) = (x.shape, w.shape);
    let mut values = Vec::with_capacity(m * n);
    for x in x.values.chunks(k) {
        for (column, w) in w.values.chunks(k).enumerate() {
            let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            values.push(activate(sum + bias.map_or(0.0, |bias| bias[column].into()), activation));
        }
    }
    Matrix { values, shape: [m, n] }
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x * 0.5 * (1.0 + inner.tanh())
        }
    }
}

impl Matrix<f32> {
    /// The same numbers in f64.
    pub fn to_f64(&self) -> Matrix<f64> {
        Matrix { values: self.values.iter().map(|x| f64::from(*x)).collect(), shape: self.shape }
    }
}

/// The error of a result: the norm of the difference over the norm of what is expected.
pub fn error(actual: &[f32], expected: &Matrix<f64>) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 =
        actual.iter().zip(&expected.values).map(|(a, e)| square(f64::from(*a) - e)).sum();
    let norm: f64 = expected.values.iter().map(|e| square(*e)).sum();
    (difference / norm).sqrt()
}
