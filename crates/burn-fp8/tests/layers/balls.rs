//! Numbers that are known to within a radius, and gradients of them: how far rounding what is saved can take a gradient, by f64.
//!
//! Midpoint-radius arithmetic (S. M. Rump, "Fast and parallel interval arithmetic", 1999): the value is the true result, and the radius holds whatever
//! numbers within the radii of the operands give.

use core::iter::Sum;
use core::ops::{Add, Div, Mul, Sub};

use burn_fp8::burn_fp8_core::Norm;
use burn_fp8_test_support::operations::Function;

/// What an operation in f32 adds, relative to its result: four times its rounding, as kernels sum in another order and exponentials are off by more.
const F32: f64 = 1.0 / (1u32 << 22) as f64;

/// A number, and by how much it may be off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ball {
    pub value: f64,
    pub radius: f64,
}

impl Ball {
    pub fn exact(value: f32) -> Self {
        Self { value: value.into(), radius: 0.0 }
    }

    fn of(value: f64, radius: f64) -> Self {
        Self { value, radius: radius + F32 * value.abs() }
    }

    pub fn exp(self) -> Self {
        let value = self.value.exp();
        Self::of(value, value * self.radius.exp_m1())
    }

    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Self::of(value, value - (self.value - self.radius).max(0.0).sqrt())
    }
}

impl Add for Ball {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::of(self.value + other.value, self.radius + other.radius)
    }
}

impl Sub for Ball {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::of(self.value - other.value, self.radius + other.radius)
    }
}

impl Mul for Ball {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let of_other = (self.value.abs() + self.radius) * other.radius;
        Self::of(self.value * other.value, of_other + self.radius * other.value.abs())
    }
}

impl Div for Ball {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        assert!(other.radius < other.value.abs(), "a division by what may be 0");
        let value = self.value / other.value;
        let radius = self.radius + value.abs() * other.radius;
        Self::of(value, radius / (other.value.abs() - other.radius))
    }
}

impl Sum for Ball {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        terms.fold(Self::default(), Self::add)
    }
}

/// Numbers as E4M3 with a scale for each 128 of a row holds them: off by half a unit of the last of three mantissa bits, or half the smallest
/// subnormal number, 2⁻⁹, times the scale, which takes the largest of the group to 448.
pub fn saved(x: &[f64], width: usize) -> Vec<Ball> {
    let of_group = |group: &[f64]| -> Vec<Ball> {
        let amax = group.iter().fold(0f64, |amax, x| amax.max(x.abs()));
        let smallest = amax / 448.0 * 2f64.powi(-9);
        let radius = |x: f64| (x.abs() / 16.0).max(smallest / 2.0);
        group.iter().map(|x| Ball::of(*x, radius(*x))).collect()
    };
    x.chunks(width).flat_map(|row| row.chunks(128)).flat_map(of_group).collect()
}

/// Slopes times gradients. The slope changes by at most `steepest` times what its argument does.
pub fn of_function(function: Function, steepest: f64, x: &[Ball], grad: &[f32]) -> Vec<Ball> {
    let slope = |x: &Ball| {
        // Slopes are at most 1.13, by terms around 1.
        Ball::of(function.slope(x.value), steepest * x.radius + 4.0 * F32)
    };
    x.iter().zip(grad).map(|(x, grad)| slope(x) * Ball::exact(*grad)).collect()
}

/// Of SiLU times its own argument.
pub fn of_swiglu(x: &[Ball], grad: &[f32]) -> Vec<Ball> {
    let of_gate = of_function(Function::Silu, 0.5, x, grad);
    // No slope of SiLU is above 1.1.
    let silu = |x: &Ball| Ball::of(Function::Silu.of(x.value), 1.1 * x.radius);
    let both = of_gate.into_iter().zip(x.iter().zip(grad));
    both.map(|(of_gate, (x, grad))| of_gate * *x + silu(x) * Ball::exact(*grad)).collect()
}

/// `y (g - Σ y g)`.
pub fn of_softmax(y: &[Ball], grad: &[f32], width: usize) -> Vec<Ball> {
    let of_row = |(y, grad): (&[Ball], &[f32])| -> Vec<Ball> {
        let grad: Vec<_> = grad.iter().copied().map(Ball::exact).collect();
        let along: Ball = y.iter().zip(&grad).map(|(y, grad)| *y * *grad).sum();
        y.iter().zip(&grad).map(|(y, grad)| *y * (*grad - along)).collect()
    };
    y.chunks(width).zip(grad.chunks(width)).flat_map(of_row).collect()
}

/// The gradients of the input of a normalization, and after them that of gamma: `(h - mean h - u · mean(h u)) / deviation` with `u` what is normalized
/// and `h` the gradient times gamma. Without a mean there is no mean of `h`, either.
pub fn of_norm(norm: Norm, x: &[Ball], grad: &[f32], gamma: &[f32]) -> Vec<Ball> {
    let width = gamma.len();
    let count = Ball::exact(width as f32);
    let mean = |terms: &[Ball]| terms.iter().copied().sum::<Ball>() / count;
    let of_mean = |terms: &[Ball]| match norm {
        Norm::Layer => mean(terms),
        Norm::Rms => Ball::default(),
    };
    let [mut of_x, mut of_gamma] = [vec![], vec![Ball::default(); width]];
    for (x, grad) in x.chunks(width).zip(grad.chunks(width)) {
        let middle = of_mean(x);
        let x: Vec<_> = x.iter().map(|x| *x - middle).collect();
        let variance = mean(&x.iter().map(|x| *x * *x).collect::<Vec<_>>());
        let deviation = (variance + Ball::exact(1e-5)).sqrt();
        let normed: Vec<_> = x.iter().map(|x| *x / deviation).collect();
        let scaled = |(grad, gamma): (&f32, &f32)| Ball::exact(*grad) * Ball::exact(*gamma);
        let scaled: Vec<_> = grad.iter().zip(gamma).map(scaled).collect();
        let along: Vec<_> = scaled.iter().zip(&normed).map(|(h, u)| *h * *u).collect();
        let [along, middle] = [mean(&along), of_mean(&scaled)];
        for (i, (h, u)) in scaled.into_iter().zip(normed).enumerate() {
            of_x.push((h - middle - u * along) / deviation);
            of_gamma[i] = of_gamma[i] + Ball::exact(grad[i]) * u;
        }
    }
    of_x.into_iter().chain(of_gamma).collect()
}

/// The gradient of queries, keys and values in one `[length, 3, width]`, where that of the output is `grad` `[length, width]`: one head.
pub fn of_attention(qkv: &[Ball], grad: &[f32], width: usize) -> Vec<Ball> {
    let length = grad.len() / width;
    let part = |row: usize, of: usize| &qkv[(3 * row + of) * width..][..width];
    let dot = |a: &[Ball], b: &[Ball]| a.iter().zip(b).map(|(a, b)| *a * *b).sum::<Ball>();
    let grad: Vec<_> = grad.iter().copied().map(Ball::exact).collect();
    let scale = Ball::exact((1.0 / (width as f64).sqrt()) as f32);
    let mut of = vec![Ball::default(); qkv.len()];
    for (i, grad) in grad.chunks(width).enumerate() {
        let exp = |j| (dot(part(i, 0), part(j, 1)) * scale).exp();
        let exps: Vec<_> = (0..length).map(exp).collect();
        let sum: Ball = exps.iter().copied().sum();
        let weights: Vec<_> = exps.into_iter().map(|exp| exp / sum).collect();
        let of_weights: Vec<_> = (0..length).map(|j| dot(grad, part(j, 2))).collect();
        let delta = dot(&weights, &of_weights);
        for j in 0..length {
            let of_score = weights[j] * (of_weights[j] - delta) * scale;
            for d in 0..width {
                let mut add = |row: usize, which: usize, term: Ball| {
                    let of = &mut of[(3 * row + which) * width + d];
                    *of = *of + term;
                };
                add(i, 0, of_score * part(j, 1)[d]);
                add(j, 1, of_score * part(i, 0)[d]);
                add(j, 2, weights[j] * grad[d]);
            }
        }
    }
    of
}
