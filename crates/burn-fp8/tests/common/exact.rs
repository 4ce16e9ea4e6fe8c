//! Products in f64, and how far from them a sum in fewer bits may end: element by element, from an analysis of the errors.

use super::reference::{Along, Operand, held, transpose};
use super::*;

/// What adds up the terms of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sums {
    /// Registers of this type, in any order, rounded or cut off after each addition.
    Of(FloatDType),
    /// FP8 tensor cores, in any order of steps. Hopper's add 32 products to a sum at a time: all are aligned to the largest of them,
    /// and 14 bits are kept (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).
    TensorCores,
}

impl Sums {
    pub const F32: Self = Self::Of(FloatDType::F32);

    /// The error of a sum of `terms` numbers, relative to the sum of their magnitudes.
    fn error(self, terms: usize) -> f64 {
        match self {
            // Each of the terms takes part in at most `terms` additions, and each of these loses at most an ulp (Higham, Accuracy and
            // Stability of Numerical Algorithms, section 4.2). Four more operations: scales and bias.
            Self::Of(dtype) => (terms + 4) as f64 * 2.0 * unit_roundoff(dtype),
            // Of each of the 33 numbers of a step less than 2^-13 of the largest one is cut off, and that is at most the sum of all
            // magnitudes. One more step for the scales.
            Self::TensorCores => (terms.div_ceil(32) + 1) as f64 * 33.0 * 2f64.powi(-13),
        }
    }
}

/// Half an ulp of 1.
fn unit_roundoff(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F32 => 2f64.powi(-24),
        FloatDType::F16 => 2f64.powi(-11),
        FloatDType::BF16 => 2f64.powi(-8),
        other => panic!("no rounding to {other:?} in these tests"),
    }
}

/// The smallest normal number and the largest finite one.
fn range(dtype: FloatDType) -> [f64; 2] {
    match dtype {
        FloatDType::F16 => [2f64.powi(-14), 65504.0],
        _ => [f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)],
    }
}

/// Output and gradients of a product, in f64, of what the operands hold in FP8: `x` `[m, k]`, `w` `[k, n]`, `g` `[m, n]`.
pub fn exact_step([x, w, g]: [&[f64]; 3], [m, k, n]: [usize; 3]) -> [Exact; 3] {
    [
        Exact::product(x, w, [m, k, n]),
        Exact::product(g, &transpose(w, [k, n]), [m, n, k]),
        Exact::product(&transpose(x, [m, k]), g, [k, m, n]),
    ]
}

/// The same of what operands hold under a recipe: blocks lie along what each product sums.
pub fn exact_step_under(
    recipe: Recipe,
    [x, w, g]: [&[f32]; 3],
    [m, k, n]: [usize; 3],
) -> [Exact; 3] {
    use Along::{Columns, Rows};
    let x = |along| held(x, k, Operand::Input, along, recipe);
    let w = |along| held(w, n, Operand::Weight, along, recipe);
    let g = |along| held(g, n, Operand::OutputGrad, along, recipe);
    [
        Exact::product(&x(Rows), &w(Columns), [m, k, n]),
        Exact::product(&g(Rows), &transpose(&w(Rows), [k, n]), [m, n, k]),
        Exact::product(&transpose(&x(Columns), [m, k]), &g(Columns), [k, m, n]),
    ]
}

/// The signal of a result against what it is off, in dB.
pub fn sqnr(exact: &[f64], actual: &[f64]) -> f64 {
    let signal: f64 = exact.iter().map(|x| x * x).sum();
    let noise: f64 = exact.iter().zip(actual).map(|(x, y)| (x - y) * (x - y)).sum();
    10.0 * (signal / noise).log10()
}

/// The result of a product, row by row.
#[derive(Clone, Debug)]
pub struct Exact {
    pub values: Vec<f64>,
    /// The magnitudes of all that is added up in each element.
    magnitudes: Vec<f64>,
    terms: usize,
    /// What each element may lose outside of sums.
    slack: Vec<f64>,
    /// The largest finite number of the type that the result has.
    largest: f64,
}

impl Exact {
    /// `[m, k]` times `[k, n]`.
    pub fn product(a: &[f64], b: &[f64], shape @ [_, terms, _]: [usize; 3]) -> Self {
        let (values, magnitudes) = reference::matmul(a, b, shape);
        // Where the scales make a result subnormal.
        let [smallest, largest] = range(FloatDType::F32);
        Self { slack: vec![smallest; values.len()], values, magnitudes, terms, largest }
    }

    /// The sum of both.
    pub fn plus(mut self, other: &Self) -> Self {
        assert_eq!(self.values.len(), other.values.len(), "results of one shape");
        self.terms += other.terms;
        for (mine, its) in [
            (&mut self.values, &other.values),
            (&mut self.magnitudes, &other.magnitudes),
            (&mut self.slack, &other.slack),
        ] {
            mine.iter_mut().zip(its).for_each(|(mine, its)| *mine += its);
        }
        self
    }

    /// With a bias, the same for each row.
    pub fn plus_bias(mut self, bias: &[f32]) -> Self {
        for (index, value) in self.values.iter_mut().enumerate() {
            let bias = f64::from(bias[index % bias.len()]);
            *value += bias;
            self.magnitudes[index] += bias.abs();
        }
        self
    }

    /// Rounded to a type.
    pub fn rounded(mut self, dtype: FloatDType) -> Self {
        let [smallest, largest] = range(dtype);
        for (slack, value) in self.slack.iter_mut().zip(&self.values) {
            *slack += unit_roundoff(dtype) * value.abs().max(smallest);
        }
        self.largest = self.largest.min(largest);
        self
    }

    /// After an activation. The slope of GELU is at most 1.13.
    pub fn activated(mut self, activation: Activation) -> Self {
        for (index, value) in self.values.iter_mut().enumerate() {
            if activation == Activation::Gelu {
                self.magnitudes[index] *= 1.13;
                // In f32; on a GPU perhaps with its own tanh, which has 11 bits (PTX, tanh.approx.f32).
                self.slack[index] = self.slack[index] * 1.13 + 2f64.powi(-11) * value.abs();
            }
            *value = reference::activate(*value, activation);
        }
        self
    }

    /// How far from each element a result may be.
    pub fn bounds(&self, sums: Sums) -> Vec<f64> {
        let error = sums.error(self.terms);
        self.magnitudes.iter().zip(&self.slack).map(|(m, slack)| error * m + slack).collect()
    }

    /// Asserts that each element is as near as its own error allows; that what is not finite is the same; and of tensor cores, whose
    /// errors hardly ever add up to their bound, that they stay small over all.
    #[track_caller]
    pub fn assert(&self, actual: &[f32], sums: Sums, what: &str) {
        assert_eq!(actual.len(), self.values.len(), "{what}: elements");
        let (mut error, mut total) = (0.0, 0.0);
        for (index, (bound, (a, e))) in
            self.bounds(sums).iter().zip(actual.iter().zip(&self.values)).enumerate()
        {
            let (a, e) = (f64::from(*a), *e);
            if !e.is_finite() {
                assert!(
                    a == e || (a.is_nan() && e.is_nan()),
                    "{what}[{index}]: {a} instead of {e}"
                );
            } else if a.is_infinite() {
                let overflows = e.abs() + bound > self.largest && a.signum() == e.signum();
                assert!(overflows, "{what}[{index}]: {a} instead of {e:e}");
            } else {
                let near = (a - e).abs() <= *bound;
                assert!(near, "{what}[{index}]: {a:e} instead of {e:e} ± {bound:e}");
                error += (a - e).powi(2);
                total += e.powi(2);
            }
        }
        if sums == Sums::TensorCores {
            let slack: f64 = self.slack.iter().map(|slack| slack.powi(2)).sum();
            let limit = OVER_ALL * f64::sqrt(total) + slack.sqrt();
            assert!(error.sqrt() <= limit, "{what}: over all {:e} off", error.sqrt());
        }
    }
}

/// The error of tensor cores relative to the norm of a result. DeepSeek saw single elements off by nearly 2 % with K = 4096 and fast
/// accumulation (section 3.3.2); over all elements it is less.
const OVER_ALL: f64 = 0.02;
