//! Operations on single elements, forward and backward: on all threads, with the vectors that the CPU has.

use burn_fp8_core::{Dropout, Pointwise};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::special::{erf, exp};

/// Elements of a task.
const TASK: usize = 1 << 14;

/// Writes the results of an operation on `x` to `y`, of the same length, on rayon's current pool.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn pointwise(operation: Pointwise, x: &[f32], y: &mut [f32]) {
    same_length(x.len(), y.len());
    in_tasks(y, |start, y| {
        let x = &x[start..][..y.len()];
        match operation {
            Pointwise::Gelu => Arch::new().dispatch(Gelu { x, y }),
            Pointwise::Dropout(dropout) => {
                drop_out(dropout, start, x, y);
            }
        }
    });
}

/// Writes the gradient of `x` to `y`, given that of the results; all of the same length. Dropout does not look at `x`, which may be empty.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn pointwise_backward(operation: Pointwise, x: &[f32], grad: &[f32], y: &mut [f32]) {
    match operation {
        Pointwise::Gelu => {
            same_length(x.len(), y.len());
            same_length(grad.len(), y.len());
            in_tasks(y, |start, y| {
                let [x, grad] = [x, grad].map(|all| &all[start..][..y.len()]);
                Arch::new().dispatch(GeluBackward { x, grad, y });
            });
        }
        // It multiplies by what it has multiplied by.
        Pointwise::Dropout(_) => pointwise(operation, grad, y),
    }
}

#[track_caller]
fn same_length(given: usize, wanted: usize) {
    assert!(given == wanted, "an operation on {wanted} elements was given {given}");
}

fn in_tasks(y: &mut [f32], task: impl Fn(usize, &mut [f32]) + Sync) {
    match y.len() <= TASK {
        true => task(0, y),
        false => {
            y.par_chunks_mut(TASK).enumerate().for_each(|(index, y)| task(index * TASK, y));
        }
    }
}

struct Gelu<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = 0.5 * x * (1.0 + erf(x * core::f32::consts::FRAC_1_SQRT_2));
        }
    }
}

struct GeluBackward<'a> {
    x: &'a [f32],
    grad: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for GeluBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // 1 / √(2π)
        const DENSITY: f32 = 0.398_942_3;
        for ((y, x), grad) in self.y.iter_mut().zip(self.x).zip(self.grad) {
            let cumulative = 0.5 * (1.0 + erf(x * core::f32::consts::FRAC_1_SQRT_2));
            *y = grad * (cumulative + x * DENSITY * exp(-0.5 * x * x));
        }
    }
}

/// Elements from `start` on, which is a multiple of the elements of a group.
fn drop_out(dropout: Dropout, start: usize, x: &[f32], y: &mut [f32]) {
    let factor = dropout.factor();
    let mut kept = [[0.0; Dropout::ROWS]; GROUP / Dropout::ROWS];
    for (group, (x, y)) in x.chunks(GROUP).zip(y.chunks_mut(GROUP)).enumerate() {
        dropout.keep_group((start / GROUP + group) as u64, &mut kept);
        for ((y, x), kept) in y.iter_mut().zip(x).zip(kept.as_flattened()) {
            *y = x * (kept * factor);
        }
    }
}

const GROUP: usize = Dropout::GROUP;

const _: () = assert!(TASK.is_multiple_of(GROUP));
