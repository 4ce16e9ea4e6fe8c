//! Operations in f64, written down as their formulas have them: attention, normalizations, functions of one number.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn_fp8_core::Norm;

/// A function of one number, and its slope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `max(x, 0)`.
    Relu,
    /// `x · Φ(x)` (Hendrycks and Gimpel, arXiv:1606.08415).
    Gelu,
    /// The same paper's approximation with `tanh`.
    GeluTanh,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Function {
    /// The value at `x`.
    pub fn of(self, x: f64) -> f64 {
        match self {
            Self::Relu => x.max(0.0),
            Self::Gelu => x * normal(x),
            Self::GeluTanh => 0.5 * x * (1.0 + inner(x).tanh()),
            Self::Silu => x * logistic(x),
        }
    }

    /// The slope at `x`; that of ReLU at 0 is 0.
    pub fn slope(self, x: f64) -> f64 {
        match self {
            Self::Relu => f64::from(u8::from(x > 0.0)),
            Self::Gelu => normal(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
            Self::GeluTanh => {
                let tanh = inner(x).tanh();
                let of_inner = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
                0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * of_inner
            }
            Self::Silu => logistic(x) * (1.0 + x * (1.0 - logistic(x))),
        }
    }
}

/// The distribution function of the normal distribution.
fn normal(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2))
}

fn inner(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Normalization of rows, and its gradients.
pub struct Normalized {
    /// The result.
    pub y: Vec<f64>,
    /// The gradient of the input,
    pub of_x: Vec<f64>,
    /// of gamma,
    pub of_gamma: Vec<f64>,
    /// and of beta.
    pub of_beta: Vec<f64>,
}

impl Normalized {
    /// Of rows as long as `gamma` and `beta`, where the gradient of the result is `grad`.
    pub fn new(
        norm: Norm,
        [x, grad]: [&[f32]; 2],
        [gamma, beta]: [&[f32]; 2],
        epsilon: f32,
    ) -> Self {
        let width = gamma.len();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / width as f64;
        let subtracted = |values: &[f64]| if norm == Norm::Layer { mean(values) } else { 0.0 };
        let of_parameters = || vec![0.0; width];
        let (of_gamma, of_beta) = (of_parameters(), of_parameters());
        let mut all = Self { y: vec![], of_x: vec![], of_gamma, of_beta };
        let [gamma, beta] = [gamma, beta].map(wide);
        for (x, grad) in x.chunks(width).zip(grad.chunks(width)) {
            let (x, grad) = (wide(x), wide(grad));
            let of_x = subtracted(&x);
            let centred: Vec<_> = x.iter().map(|x| x - of_x).collect();
            let variance = mean(&centred.iter().map(|x| x * x).collect::<Vec<_>>());
            let deviation = (variance + f64::from(epsilon)).sqrt();
            let normed: Vec<_> = centred.iter().map(|x| x / deviation).collect();
            let scaled: Vec<_> = grad.iter().zip(&gamma).map(|(g, gamma)| g * gamma).collect();
            let along: Vec<_> = scaled.iter().zip(&normed).map(|(g, x)| g * x).collect();
            let (of_scaled, along) = (subtracted(&scaled), mean(&along));
            for i in 0..width {
                all.y.push(normed[i] * gamma[i] + beta[i]);
                all.of_x.push((scaled[i] - of_scaled - normed[i] * along) / deviation);
                all.of_gamma[i] += grad[i] * normed[i];
                all.of_beta[i] += grad[i];
            }
        }
        all
    }
}

/// Rows divided by the root of their mean square, times `gamma`.
pub fn rms_norm(x: &[f64], gamma: &[f32], epsilon: f64) -> Vec<f64> {
    let row = |row: &[f64]| {
        let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let root = (square + epsilon).sqrt();
        let one = |(x, gamma): (&f64, &f32)| x / root * f64::from(*gamma);
        row.iter().zip(gamma).map(one).collect::<Vec<_>>()
    };
    x.chunks(gamma.len()).flat_map(row).collect()
}

/// The same numbers in f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A result, and the sum of the magnitudes of what it is a sum of: what errors are relative to where terms cancel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// The result.
    pub value: f64,
    /// Σ of magnitudes.
    pub magnitude: f64,
}

impl Sum {
    fn add(&mut self, term: f64, magnitude: f64) {
        self.value += term;
        self.magnitude += magnitude.abs();
    }
}

/// The sizes of an attention: `heads` of queries, in groups that share each of the `kv_heads`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Sequences.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys, and values.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
}

impl AttentionSizes {
    /// With values as wide as keys.
    pub const fn new(
        [batch, heads, kv_heads]: [usize; 3],
        [queries, keys, width]: [usize; 3],
    ) -> Self {
        Self { batch, heads, kv_heads, queries, keys, width, value_width: width }
    }

    /// The shape of queries.
    pub fn q(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.width]
    }

    /// The shape of keys.
    pub fn k(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.width]
    }

    /// The shape of values.
    pub fn v(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.value_width]
    }

    /// The shape of the output.
    pub fn y(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_width]
    }

    /// The shape of scores.
    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }
}

/// What is asked of an attention. A place is batch, head, query, key.
pub struct Attention<'a> {
    /// What products of queries and keys are multiplied by.
    pub scale: f64,
    /// `cap · tanh(score / cap)`.
    pub softcap: Option<f64>,
    /// Query `i` sees the keys up to `i + keys - queries`.
    pub causal: bool,
    /// What is added to a score.
    pub bias: &'a dyn Fn([usize; 4]) -> f64,
    /// Whether a key is not seen.
    pub hidden: &'a dyn Fn([usize; 4]) -> bool,
    /// What a probability is multiplied by: of dropout, 0 or `1 / (1 - p)`.
    pub kept: &'a dyn Fn([usize; 4]) -> f64,
}

impl Attention<'_> {
    /// Scores divided by the root of the width, nothing else.
    pub fn new(width: usize) -> Self {
        Self {
            scale: 1.0 / (width as f64).sqrt(),
            softcap: None,
            causal: false,
            bias: &|_| 0.0,
            hidden: &|_| false,
            kept: &|_| 1.0,
        }
    }

    /// The output, and the gradients of queries, keys and values where that of the output is `grad`: in the order of the formula, with whole
    /// matrices. A query that sees nothing has an output of 0.
    pub fn run(&self, sizes: &AttentionSizes, [q, k, v, grad]: [&[f32]; 4]) -> [Vec<Sum>; 4] {
        let AttentionSizes { batch, heads, kv_heads, queries, keys, width, value_width } = *sizes;
        let [mut y, mut of_q, mut of_k, mut of_v] =
            [grad, q, k, v].map(|like| vec![Sum::default(); like.len()]);
        let at = |x: &[f32], index: usize| f64::from(x[index]);
        let rows = (0..batch * heads * queries)
            .map(|row| (row, row / queries / heads, row / queries % heads, row % queries));
        for (row, b, h, i) in rows {
            let kv = b * kv_heads + h / (heads / kv_heads);
            let mut slopes = vec![1f64; keys];
            let mut scores = vec![f64::NEG_INFINITY; keys];
            for j in 0..keys {
                let terms =
                    (0..width).map(|d| at(q, row * width + d) * at(k, (kv * keys + j) * width + d));
                let mut score = terms.sum::<f64>() * self.scale;
                if let Some(cap) = self.softcap {
                    let tanh = (score / cap).tanh();
                    (score, slopes[j]) = (cap * tanh, 1.0 - tanh * tanh);
                }
                let is_ahead = self.causal && j + queries > i + keys;
                if !is_ahead && !(self.hidden)([b, h, i, j]) {
                    scores[j] = score + (self.bias)([b, h, i, j]);
                }
            }
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if largest == f64::NEG_INFINITY {
                continue;
            }
            let exps: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = exps.iter().sum();
            let p: Vec<f64> = exps.iter().map(|exp| exp / sum).collect();
            let mut of_p = vec![Sum::default(); keys];
            let mut delta = Sum::default();
            for j in 0..keys {
                let kept = (self.kept)([b, h, i, j]);
                for d in 0..value_width {
                    let (value, out) = ((kv * keys + j) * value_width + d, row * value_width + d);
                    let add = |sum: &mut Sum, term: f64| sum.add(term, term);
                    add(&mut y[out], p[j] * kept * at(v, value));
                    add(&mut of_v[value], p[j] * kept * at(grad, out));
                    if kept != 0.0 {
                        add(&mut of_p[j], kept * at(grad, out) * at(v, value));
                    }
                }
                delta.add(p[j] * of_p[j].value, p[j] * of_p[j].magnitude);
            }
            for j in 0..keys {
                let factor = p[j] * slopes[j] * self.scale;
                let of_score = factor * (of_p[j].value - delta.value);
                let magnitude = factor * (of_p[j].magnitude + delta.magnitude);
                for d in 0..width {
                    let (query, key) = (row * width + d, (kv * keys + j) * width + d);
                    of_q[query].add(of_score * at(k, key), magnitude * at(k, key));
                    of_k[key].add(of_score * at(q, query), magnitude * at(q, query));
                }
            }
        }
        [y, of_q, of_k, of_v]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slopes are what differences have.
    #[test]
    fn slopes_are_those_of_their_functions() {
        for function in [Function::Relu, Function::Gelu, Function::GeluTanh, Function::Silu] {
            for x in [-7.3, -1.1, -0.2, 0.3, 0.9, 2.5, 8.0] {
                let step = 1e-6;
                let slope = (function.of(x + step) - function.of(x - step)) / (2.0 * step);
                assert!((slope - function.slope(x)).abs() < 1e-8, "{function:?} {x}");
            }
        }
        // Φ(1), the approximation of it, and 1 / (1 + 1 / e).
        let close = |function: Function, y: f64| (function.of(1.0) - y).abs() < 1e-15;
        assert!(close(Function::Gelu, 0.8413447460685429));
        assert!(close(Function::GeluTanh, 0.8411919906082768));
        assert!(close(Function::Silu, 0.7310585786300049));
    }

    /// The gradient along one direction, by differences of what is differentiated: Σ y · grad.
    #[test]
    fn gradients_are_those_of_differences() {
        let loss = |y: &[f64], grad: &[f32]| -> f64 {
            y.iter().zip(grad).map(|(y, g)| y * f64::from(*g)).sum()
        };
        let step = 2f32.powi(-12);
        let moved = |x: &[f32], by: f32| -> Vec<f32> {
            x.iter().enumerate().map(|(i, x)| x + by * ((i % 3) as f32 - 1.0)).collect()
        };
        let along = |of: &[f64]| -> f64 {
            of.iter().enumerate().map(|(i, of)| of * ((i % 3) as f64 - 1.0)).sum()
        };
        let mut random = crate::Random(1);
        // Multiples of 2^-10, so that a step is exact.
        let mut numbers = |count: usize| -> Vec<f32> {
            (0..count).map(|_| (random.unit() * 1024.0).round() / 1024.0).collect()
        };

        let (x, grad, gamma, beta) = (numbers(15), numbers(15), numbers(5), numbers(5));
        for kind in [Norm::Layer, Norm::Rms] {
            let norm = |x: &[f32], gamma: &[f32], beta: &[f32]| {
                Normalized::new(kind, [x, &grad], [gamma, beta], 1e-5)
            };
            let at = norm(&x, &gamma, &beta);
            let differences = [
                [step, -step].map(|by| loss(&norm(&moved(&x, by), &gamma, &beta).y, &grad)),
                [step, -step].map(|by| loss(&norm(&x, &moved(&gamma, by), &beta).y, &grad)),
                [step, -step].map(|by| loss(&norm(&x, &gamma, &moved(&beta, by)).y, &grad)),
            ];
            for ([up, down], of) in differences.iter().zip([&at.of_x, &at.of_gamma, &at.of_beta]) {
                let difference = (up - down) / (2.0 * f64::from(step));
                assert!((difference - along(of)).abs() < 1e-5, "{difference} {}", along(of));
            }
        }

        let sizes = AttentionSizes { value_width: 4, ..AttentionSizes::new([2, 4, 2], [3, 5, 6]) };
        let shapes = [sizes.q(), sizes.k(), sizes.v(), sizes.y()];
        let operands = shapes.map(|shape| numbers(shape.iter().product()));
        let attention = Attention {
            softcap: Some(0.7),
            causal: true,
            bias: &|[b, h, i, j]| (b + 2 * h + 3 * i + 5 * j) as f64 / 20.0,
            hidden: &|[_, h, i, j]| (h + i + j) % 4 == 1,
            kept: &|[b, _, i, j]| if (b + i + j) % 3 == 0 { 0.0 } else { 1.5 },
            ..Attention::new(6)
        };
        let run = |operands: &[Vec<f32>; 4]| {
            let results = attention.run(&sizes, operands.each_ref().map(Vec::as_slice));
            results.map(|sums| sums.iter().map(|sum| sum.value).collect::<Vec<_>>())
        };
        let results = run(&operands);
        for which in 0..3 {
            let [up, down] = [step, -step].map(|by| {
                let mut operands = operands.clone();
                operands[which] = moved(&operands[which], by);
                loss(&run(&operands)[0], &operands[3])
            });
            let difference = (up - down) / (2.0 * f64::from(step));
            let of = along(&results[1 + which]);
            assert!(of != 0.0 && (difference - of).abs() < 1e-5, "{which}: {difference} {of}");
        }
    }

    #[test]
    fn rows_of_one_size_are_ones_after_a_norm() {
        assert_eq!(rms_norm(&[3.0, -3.0, 4.0, 4.0], &[1.0, 2.0], 0.0), [1.0, -2.0, 1.0, 2.0]);
    }
}
