//! Operations on single elements, forward and backward: on all threads, with the vectors that the CPU has.

use core::marker::PhantomData;

use burn_fp8_core::{Dropout, MlpActivation, Pointwise};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::dropout::keep_group;
use crate::special::{erf, exp};
use crate::unit::arch;

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
            Pointwise::Gelu => arch().dispatch(Forward::<Gelu>(x, y, PhantomData)),
            Pointwise::Silu => arch().dispatch(Forward::<Silu>(x, y, PhantomData)),
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
        Pointwise::Gelu => smooth_backward::<Gelu>(x, grad, y),
        Pointwise::Silu => smooth_backward::<Silu>(x, grad, y),
        // It multiplies by what it has multiplied by.
        Pointwise::Dropout(_) => pointwise(operation, grad, y),
    }
}

/// Writes `act(gate) · up` to `y`; all of the same length.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn gated(activation: MlpActivation, [gate, up]: [&[f32]; 2], y: &mut [f32]) {
    [gate, up].iter().for_each(|given| same_length(given.len(), y.len()));
    in_tasks(y, |start, y| {
        let [gate, up] = [gate, up].map(|all| &all[start..][..y.len()]);
        match activation {
            MlpActivation::Gelu => arch().dispatch(Gated::<Gelu>(gate, up, y, PhantomData)),
            MlpActivation::Silu => arch().dispatch(Gated::<Silu>(gate, up, y, PhantomData)),
        }
    });
}

/// Writes the gradients of `gate` and `up`, given that of the results; all of the same length.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn gated_backward(
    activation: MlpActivation,
    [gate, up, grad]: [&[f32]; 3],
    [of_gate, of_up]: [&mut [f32]; 2],
) {
    [gate, up, grad, of_up].iter().for_each(|given| same_length(given.len(), of_gate.len()));
    let tasks = of_gate.par_chunks_mut(TASK).zip(of_up.par_chunks_mut(TASK)).enumerate();
    tasks.for_each(|(task, (of_gate, of_up))| {
        let given = [gate, up, grad].map(|all| &all[task * TASK..][..of_gate.len()]);
        let of = [of_gate, of_up];
        match activation {
            MlpActivation::Gelu => arch().dispatch(GatedBackward::<Gelu>(given, of, PhantomData)),
            MlpActivation::Silu => arch().dispatch(GatedBackward::<Silu>(given, of, PhantomData)),
        }
    });
}

#[track_caller]
fn smooth_backward<F: Smooth>(x: &[f32], grad: &[f32], y: &mut [f32]) {
    same_length(x.len(), y.len());
    same_length(grad.len(), y.len());
    in_tasks(y, |start, y| {
        let [x, grad] = [x, grad].map(|all| &all[start..][..y.len()]);
        arch().dispatch(Backward::<F>(x, grad, y, PhantomData));
    });
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

/// A function that has a slope everywhere.
pub(crate) trait Smooth {
    fn value(x: f32) -> f32;
    fn slope(x: f32) -> f32;
}

enum Gelu {}

impl Gelu {
    /// The cumulative normal distribution.
    #[inline(always)]
    fn cumulative(x: f32) -> f32 {
        0.5 * (1.0 + erf(x * core::f32::consts::FRAC_1_SQRT_2))
    }
}

impl Smooth for Gelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * Self::cumulative(x)
    }

    #[inline(always)]
    fn slope(x: f32) -> f32 {
        // 1 / √(2π)
        const DENSITY: f32 = 0.398_942_3;
        Self::cumulative(x) + x * DENSITY * exp(-0.5 * x * x)
    }
}

pub(crate) enum Silu {}

impl Smooth for Silu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x / (1.0 + exp(-x))
    }

    #[inline(always)]
    fn slope(x: f32) -> f32 {
        let logistic = 1.0 / (1.0 + exp(-x));
        logistic * (1.0 + x * (1.0 - logistic))
    }
}

/// Of `x`, to `y`.
struct Forward<'a, F>(&'a [f32], &'a mut [f32], PhantomData<F>);

impl<F: Smooth> WithSimd for Forward<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (y, x) in self.1.iter_mut().zip(self.0) {
            *y = F::value(*x);
        }
    }
}

/// Of `x` and the gradient of the results, to `y`.
struct Backward<'a, F>(&'a [f32], &'a [f32], &'a mut [f32], PhantomData<F>);

impl<F: Smooth> WithSimd for Backward<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((y, x), grad) in self.2.iter_mut().zip(self.0).zip(self.1) {
            *y = grad * F::slope(*x);
        }
    }
}

/// Of a gate and what it is for, to `y`.
struct Gated<'a, F>(&'a [f32], &'a [f32], &'a mut [f32], PhantomData<F>);

impl<F: Smooth> WithSimd for Gated<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((y, gate), up) in self.2.iter_mut().zip(self.0).zip(self.1) {
            *y = F::value(*gate) * up;
        }
    }
}

/// Of both and the gradient of the results, to the gradients of both.
struct GatedBackward<'a, F>([&'a [f32]; 3], [&'a mut [f32]; 2], PhantomData<F>);

impl<F: Smooth> WithSimd for GatedBackward<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ([gate, up, grad], [of_gate, of_up]) = (self.0, self.1);
        let of_both = of_gate.iter_mut().zip(of_up);
        for (((of_gate, of_up), (gate, up)), grad) in of_both.zip(gate.iter().zip(up)).zip(grad) {
            *of_gate = grad * up * F::slope(*gate);
            *of_up = grad * F::value(*gate);
        }
    }
}

/// Elements from `start` on, which is a multiple of the elements of a group.
fn drop_out(dropout: Dropout, start: usize, x: &[f32], y: &mut [f32]) {
    let factor = dropout.factor();
    let mut kept = [[0.0; Dropout::ROWS]; GROUP / Dropout::ROWS];
    for (group, (x, y)) in x.chunks(GROUP).zip(y.chunks_mut(GROUP)).enumerate() {
        keep_group(dropout, (start / GROUP + group) as u64, &mut kept);
        for ((y, x), kept) in y.iter_mut().zip(x).zip(kept.as_flattened()) {
            *y = x * (kept * factor);
        }
    }
}

const GROUP: usize = Dropout::GROUP;

const _: () = assert!(TASK.is_multiple_of(GROUP));
