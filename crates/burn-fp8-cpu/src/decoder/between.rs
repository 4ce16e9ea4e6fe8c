//! What a decoder does between products, in place, row by row: on all threads where there is much, with the vectors that the CPU has.

use burn_fp8_core::Norm;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::norm::statistics;
use crate::pointwise::{Silu, Smooth};
use crate::unit::arch;

/// Elements up to which one thread does all.
const ALONE: usize = 1 << 15;

/// Divides each row of `x` by the root of the mean of its squares, `epsilon` added to the mean, and multiplies it by `gamma`, which is as long as a row.
///
/// # Panics
/// If `x` is not whole rows.
#[track_caller]
pub fn rms_norm(x: &mut [f32], gamma: &[f32], epsilon: f32) {
    in_rows(x, gamma.len(), |_, rows| arch().dispatch(RmsNorm { rows, gamma, epsilon }));
}

/// Turns rows, each of which is heads as wide as twice a row of `cos` and `sin`: element `i` of a head with element `i + width / 2`.
///
/// `cos` and `sin` are `[rows, width / 2]`, `x` `[rows, heads, width]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn turn(x: &mut [f32], heads: usize, half: usize, [cos, sin]: [&[f32]; 2]) {
    let width = heads * 2 * half;
    assert!(
        cos.len() == sin.len() && cos.len() * heads * 2 == x.len(),
        "{} cosines and {} sines turn rows of {heads} heads of {}, not {} elements",
        cos.len(),
        sin.len(),
        2 * half,
        x.len()
    );
    in_rows(x, width, |first, rows| {
        let turns = first / heads / 2..(first + rows.len()) / heads / 2;
        let [cos, sin] = [&cos[turns.clone()], &sin[turns]];
        arch().dispatch(Turn { rows, heads, half, cos, sin });
    });
}

/// `gate / (1 + e^-gate) · up`, in the place of `gate`: SwiGLU's product, silu as `burn::tensor::activation::silu`.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    assert!(gate.len() == up.len(), "{} gates, {} elements to go through", gate.len(), up.len());
    in_rows(gate, 1, |first, gate| {
        let up = &up[first..][..gate.len()];
        arch().dispatch(SwiGlu { gate, up });
    });
}

/// Gives a task whole rows, and how many elements lie before them.
#[track_caller]
fn in_rows(x: &mut [f32], width: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "{} elements are not rows of {width}",
        x.len()
    );
    if x.len() <= ALONE {
        return task(0, x);
    }
    let chunk = (ALONE / width).max(1) * width;
    x.par_chunks_mut(chunk).enumerate().for_each(|(index, rows)| task(index * chunk, rows));
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    gamma: &'a [f32],
    epsilon: f32,
}

impl WithSimd for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.rows.chunks_exact_mut(self.gamma.len()) {
            let [_, factor] = statistics(Norm::Rms, row, self.epsilon);
            for (x, gamma) in row.iter_mut().zip(self.gamma) {
                *x *= factor * gamma;
            }
        }
    }
}

struct Turn<'a> {
    rows: &'a mut [f32],
    heads: usize,
    half: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { rows, heads, half, cos, sin } = self;
        let turns = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (row, (cos, sin)) in rows.chunks_exact_mut(heads * 2 * half).zip(turns) {
            for head in row.chunks_exact_mut(2 * half) {
                let (a, b) = head.split_at_mut(half);
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}

struct SwiGlu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl WithSimd for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = Silu::value(*gate) * up;
        }
    }
}
