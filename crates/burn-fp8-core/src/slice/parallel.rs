//! The functions of [`slice`](super) on rayon's current pool.
//!
//! Inside `ThreadPool::install` that is the pool installed, elsewhere the global one. Results are bit for bit those of the
//! functions of the same name in [`slice`](super); short slices are handled on the calling thread.

use rayon::prelude::*;

use super::blocks::TASK;
use super::{Amax, Source, product, same_length};
use crate::{Fp8Format, Overflow};

/// Whether there are enough elements for two tasks, and threads to take them.
fn worthwhile(elements: usize) -> bool {
    elements > TASK && rayon::current_num_threads() > 1
}

/// [`slice::amax`](super::amax), in parallel.
pub fn amax<S: Source>(x: &[S]) -> Amax {
    if !worthwhile(x.len()) {
        return super::amax(x);
    }
    x.par_chunks(TASK).map(super::amax).reduce(Amax::default, Amax::union)
}

/// [`slice::encode`](super::encode), in parallel.
///
/// # Panics
/// If `x` and `codes` differ in length.
pub fn encode<S: Source>(
    x: &[S],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
    codes: &mut [u8],
) {
    pairs(("x", x), ("codes", codes), |x, codes| super::encode(x, scale, format, overflow, codes));
}

/// [`slice::encode_with_amax`](super::encode_with_amax), in parallel.
///
/// # Panics
/// If `x` and `codes` differ in length.
pub fn encode_with_amax<S: Source>(
    x: &[S],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
    codes: &mut [u8],
) -> Amax {
    same_length(("x", x.len()), ("codes", codes.len()));
    let encode =
        |x: &[S], codes: &mut [u8]| super::encode_with_amax(x, scale, format, overflow, codes);
    if !worthwhile(x.len()) {
        return encode(x, codes);
    }
    let tasks = x.par_chunks(TASK).zip(codes.par_chunks_mut(TASK));
    tasks.map(|(x, codes)| encode(x, codes)).reduce(Amax::default, Amax::union)
}

/// [`slice::decode`](super::decode), in parallel.
///
/// # Panics
/// If `codes` and `x` differ in length.
pub fn decode(codes: &[u8], scale: f32, format: Fp8Format, x: &mut [f32]) {
    pairs(("codes", codes), ("x", x), |codes, x| super::decode(codes, scale, format, x));
}

/// [`slice::round`](super::round), in parallel.
///
/// # Panics
/// If `x` and `values` differ in length.
pub fn round<S: Source>(
    x: &[S],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
    values: &mut [f32],
) {
    pairs(("x", x), ("values", values), |x, values| {
        super::round(x, scale, format, overflow, values)
    });
}

/// [`slice::encode_and_round`](super::encode_and_round), in parallel.
///
/// # Panics
/// If `x`, `codes` and `values` differ in length.
pub fn encode_and_round<S: Source>(
    x: &[S],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
    codes: &mut [u8],
    values: &mut [f32],
) {
    same_length(("x", x.len()), ("codes", codes.len()));
    same_length(("x", x.len()), ("values", values.len()));
    if !worthwhile(x.len()) {
        return super::encode_and_round(x, scale, format, overflow, codes, values);
    }
    let outputs = codes.par_chunks_mut(TASK).zip(values.par_chunks_mut(TASK));
    x.par_chunks(TASK).zip(outputs).for_each(|(x, (codes, values))| {
        super::encode_and_round(x, scale, format, overflow, codes, values)
    });
}

/// [`slice::quantize_dequantize`](super::quantize_dequantize), in parallel.
///
/// # Panics
/// If `x` and `y` differ in length.
pub fn quantize_dequantize(
    x: &[f32],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
    y: &mut [f32],
) {
    pairs(("x", x), ("y", y), |x, y| super::quantize_dequantize(x, scale, format, overflow, y));
}

/// [`slice::quantize_dequantize_in_place`](super::quantize_dequantize_in_place), in parallel.
pub fn quantize_dequantize_in_place(
    x: &mut [f32],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
) {
    chunks(x, |x| super::quantize_dequantize_in_place(x, scale, format, overflow));
}

/// [`slice::scale`](super::scale), in parallel.
///
/// # Panics
/// If `x` and `y` differ in length.
pub fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    pairs(("x", x), ("y", y), |x, y| super::scale(x, factor, y));
}

/// [`slice::scale_in_place`](super::scale_in_place), in parallel.
pub fn scale_in_place(x: &mut [f32], factor: f32) {
    chunks(x, |x| super::scale_in_place(x, factor));
}

/// [`slice::matmul_codes`](super::matmul_codes), in parallel: each thread takes some columns.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` give it.
pub fn matmul_codes(x: &[f32], codes: &[u8], shape: [usize; 3], format: Fp8Format, y: &mut [f32]) {
    product::matmul(x, codes, shape, None, format, y, 1 << 20);
}

/// Runs `work` on corresponding pieces of two slices of the same length, which are named.
fn pairs<S: Sync, T: Send>(
    (x_name, x): (&str, &[S]),
    (y_name, y): (&str, &mut [T]),
    work: impl Fn(&[S], &mut [T]) + Sync,
) {
    same_length((x_name, x.len()), (y_name, y.len()));
    if worthwhile(x.len()) {
        x.par_chunks(TASK).zip(y.par_chunks_mut(TASK)).for_each(|(x, y)| work(x, y));
    } else {
        work(x, y);
    }
}

/// Runs `work` on pieces of a slice.
fn chunks(x: &mut [f32], work: impl Fn(&mut [f32]) + Sync + Send) {
    if worthwhile(x.len()) {
        x.par_chunks_mut(TASK).for_each(work);
    } else {
        work(x);
    }
}
