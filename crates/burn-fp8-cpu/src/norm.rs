//! Normalization of rows, forward and backward: on all threads, with the vectors that the CPU has.

use crate::unit::arch;
use burn_fp8_core::Norm;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Elements of a task, but for rows that are longer. Sums over rows are added task by task: their bits do not depend on threads.
const TASK: usize = 1 << 14;

/// Sums that are added side by side, and the like.
pub(crate) const LANES: usize = 16;

/// `(x - mean) / √(variance + epsilon) · gamma + beta` in each row, with its mean and its variance over all elements; with [`Norm::Rms`] the mean is
/// taken to be 0.
///
/// Sources: J. L. Ba et al., "Layer normalization", 2016; B. Zhang and R. Sennrich, "Root mean square layer normalization", 2019.
#[derive(Clone, Copy, Debug)]
pub struct Normalization<'a> {
    /// Whether the mean is subtracted.
    pub norm: Norm,
    /// One factor for each element of a row.
    pub gamma: &'a [f32],
    /// What is added to each element of a row.
    pub beta: Option<&'a [f32]>,
    /// Added to the variance.
    pub epsilon: f32,
}

impl Normalization<'_> {
    /// # Panics
    /// If lengths do not fit each other.
    #[track_caller]
    fn check(&self, lengths: &[usize]) -> usize {
        let width = self.gamma.len();
        let [first, rest @ ..] = lengths else { unreachable!("there is an input") };
        assert!(
            rest.iter().all(|length| length == first)
                && self.beta.is_none_or(|beta| beta.len() == width)
                && if width == 0 { *first == 0 } else { first.is_multiple_of(width) },
            "{} of rows of {width} was given {lengths:?} elements, and {:?} of beta",
            self.norm.name(),
            self.beta.map(<[f32]>::len)
        );
        width
    }
}

/// Writes the normalized rows of `x` to `y`, on rayon's current pool.
///
/// # Panics
/// If `x` is not as long as `y`, or is not made of rows as long as gamma, or beta has another length than gamma.
#[track_caller]
pub fn normalize(norm: &Normalization<'_>, x: &[f32], y: &mut [f32]) {
    let width = norm.check(&[x.len(), y.len()]);
    if width == 0 {
        return;
    }
    let task = rows_of_task(width) * width;
    y.par_chunks_mut(task).zip(x.par_chunks(task)).for_each(|(y, x)| {
        arch().dispatch(Forward { norm, x, y });
    });
}

/// Writes the gradient of `x` to `of_x`, and those of gamma and beta to `of_gamma` and `of_beta`, given that of the result. Beta is not needed.
///
/// # Panics
/// As [`normalize`]; and if a gradient has another length than what it is for.
#[track_caller]
pub fn normalize_backward(
    norm: &Normalization<'_>,
    x: &[f32],
    grad: &[f32],
    of_x: &mut [f32],
    [of_gamma, of_beta]: [&mut [f32]; 2],
) {
    let width = norm.check(&[x.len(), grad.len(), of_x.len()]);
    assert!(
        of_gamma.len() == width && of_beta.len() == width,
        "gradients of {} and {} for {width} factors",
        of_gamma.len(),
        of_beta.len()
    );
    of_gamma.fill(0.0);
    of_beta.fill(0.0);
    if width == 0 {
        return;
    }
    // Each task has sums of its own: with few tasks they are little beside the rows.
    let task = rows_of_task(width).max((x.len() / width).div_ceil(64)) * width;
    let tasks = of_x.par_chunks_mut(task).zip(x.par_chunks(task)).zip(grad.par_chunks(task));
    let sums: Vec<_> = tasks
        .map(|((of_x, x), grad)| {
            let mut sums = [vec![0.0; width], vec![0.0; width]];
            arch().dispatch(Backward { norm, x, grad, of_x, sums: &mut sums });
            sums
        })
        .collect();
    for [gamma, beta] in &sums {
        for (total, part) in [(&mut *of_gamma, gamma), (&mut *of_beta, beta)] {
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
    }
}

pub(crate) fn rows_of_task(width: usize) -> usize {
    (TASK / width).max(1)
}

struct Forward<'a> {
    norm: &'a Normalization<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Normalization { norm, gamma, beta, epsilon } = *self.norm;
        let width = gamma.len();
        for (x, y) in self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width)) {
            let [mean, factor] = statistics(norm, x, epsilon);
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = (x - mean) * factor * gamma;
            }
            if let Some(beta) = beta {
                y.iter_mut().zip(beta).for_each(|(y, beta)| *y += beta);
            }
        }
    }
}

struct Backward<'a> {
    norm: &'a Normalization<'a>,
    x: &'a [f32],
    grad: &'a [f32],
    of_x: &'a mut [f32],
    /// Of gamma and of beta, to which those of these rows are added.
    sums: &'a mut [Vec<f32>; 2],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Normalization { norm, gamma, epsilon, .. } = *self.norm;
        let width = gamma.len();
        let [of_gamma, of_beta] = self.sums;
        let rows = self.x.chunks_exact(width).zip(self.grad.chunks_exact(width));
        for ((x, grad), of_x) in rows.zip(self.of_x.chunks_exact_mut(width)) {
            let [mean, factor] = statistics(norm, x, epsilon);
            // Of the normalized row, for now: x is read once more otherwise.
            for (normed, x) in of_x.iter_mut().zip(x) {
                *normed = (x - mean) * factor;
            }
            let of_parameters = of_gamma.iter_mut().zip(of_beta.iter_mut());
            for (((of_gamma, of_beta), normed), grad) in of_parameters.zip(&*of_x).zip(grad) {
                *of_gamma += grad * normed;
                *of_beta += grad;
            }
            let scaled = |grad: f32, gamma: f32, _| grad * gamma;
            let along = |grad: f32, gamma: f32, normed: f32| grad * gamma * normed;
            let mean_scaled = match norm {
                Norm::Layer => sum([grad, gamma, of_x], scaled) / width as f32,
                Norm::Rms => 0.0,
            };
            let mean_along = sum([grad, gamma, of_x], along) / width as f32;
            for ((normed, grad), gamma) in of_x.iter_mut().zip(grad).zip(gamma) {
                *normed = factor * (grad * gamma - mean_scaled - *normed * mean_along);
            }
        }
    }
}

/// The mean of a row that is subtracted, and one over the root of the mean of the squares of the rest.
#[inline(always)]
pub(crate) fn statistics(norm: Norm, row: &[f32], epsilon: f32) -> [f32; 2] {
    let count = row.len() as f32;
    let mean = match norm {
        Norm::Layer => sum([row; 3], |x, _, _| x) / count,
        Norm::Rms => 0.0,
    };
    let variance = sum([row; 3], |x, _, _| (x - mean) * (x - mean)) / count;
    [mean, 1.0 / (variance + epsilon).sqrt()]
}

/// The sum of a function of the elements of three slices of one length.
#[inline(always)]
pub(crate) fn sum([a, b, c]: [&[f32]; 3], term: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let (chunks_a, rest_a) = a.as_chunks::<LANES>();
    let (chunks_b, rest_b) = b.as_chunks::<LANES>();
    let (chunks_c, rest_c) = c.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for ((a, b), c) in chunks_a.iter().zip(chunks_b).zip(chunks_c) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane], c[lane]);
        }
    }
    for (lane, ((a, b), c)) in lanes.iter_mut().zip(rest_a.iter().zip(rest_b).zip(rest_c)) {
        *lane += term(*a, *b, *c);
    }
    lanes.iter().sum()
}
