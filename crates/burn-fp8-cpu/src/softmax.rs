//! Softmax of rows and its logarithm, forward and backward: on all threads, with the vectors that the CPU has.

use burn_fp8_core::Softmax;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::norm::{LANES, rows_of_task, sum};
use crate::special::exp;
use crate::unit::arch;

/// Writes the results of rows of `width` elements of `x` to `y`, on rayon's current pool. The largest element of a row is subtracted first.
///
/// # Panics
/// If `x` is not as long as `y`, or is not made of such rows.
#[track_caller]
pub fn softmax(kind: Softmax, width: usize, x: &[f32], y: &mut [f32]) {
    if is_empty(width, &[x.len(), y.len()]) {
        return;
    }
    let task = rows_of_task(width) * width;
    y.par_chunks_mut(task).zip(x.par_chunks(task)).for_each(|(y, x)| {
        arch().dispatch(Forward { kind, width, x, y });
    });
}

/// Writes the gradient of the input to `of_x`, given the results `y` and their gradient.
///
/// # Panics
/// As [`softmax`].
#[track_caller]
pub fn softmax_backward(kind: Softmax, width: usize, y: &[f32], grad: &[f32], of_x: &mut [f32]) {
    if is_empty(width, &[y.len(), grad.len(), of_x.len()]) {
        return;
    }
    let task = rows_of_task(width) * width;
    let given = y.par_chunks(task).zip(grad.par_chunks(task));
    of_x.par_chunks_mut(task).zip(given).for_each(|(of_x, (y, grad))| {
        arch().dispatch(Backward { kind, width, y, grad, of_x });
    });
}

#[track_caller]
fn is_empty(width: usize, lengths: &[usize]) -> bool {
    let whole = if width == 0 { lengths[0] == 0 } else { lengths[0].is_multiple_of(width) };
    assert!(
        whole && lengths.iter().all(|length| *length == lengths[0]),
        "softmax of rows of {width} was given {lengths:?} elements"
    );
    lengths[0] == 0
}

struct Forward<'a> {
    kind: Softmax,
    width: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.x.chunks_exact(self.width).zip(self.y.chunks_exact_mut(self.width));
        for (x, y) in rows {
            let largest = largest(x);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = exp(x - largest));
            let total = sum([y; 3], |y, _, _| y);
            match self.kind {
                Softmax::Probabilities => y.iter_mut().for_each(|y| *y /= total),
                Softmax::Logarithms => {
                    let logarithm = total.ln();
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = x - largest - logarithm);
                }
            }
        }
    }
}

struct Backward<'a> {
    kind: Softmax,
    width: usize,
    y: &'a [f32],
    grad: &'a [f32],
    of_x: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { kind, width, .. } = self;
        let given = self.y.chunks_exact(width).zip(self.grad.chunks_exact(width));
        for ((y, grad), of_x) in given.zip(self.of_x.chunks_exact_mut(width)) {
            let elements = of_x.iter_mut().zip(y.iter().zip(grad));
            match kind {
                Softmax::Probabilities => {
                    let along = sum([y, grad, grad], |y, grad, _| y * grad);
                    elements.for_each(|(of_x, (y, grad))| *of_x = y * (grad - along));
                }
                Softmax::Logarithms => {
                    let total = sum([grad; 3], |grad, _, _| grad);
                    elements.for_each(|(of_x, (y, grad))| *of_x = exp(*y).mul_add(-total, *grad));
                }
            }
        }
    }
}

/// Of numbers: NaN does not count.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}
