//! FP8 conversions over slices, with a scale: `x ≈ code × scale`. [`blocks`]: over matrices with a scale for each block.
//!
//! Long slices are shared among the threads of rayon's current pool: inside `ThreadPool::install` the pool installed, elsewhere the global
//! one. The number of threads changes no bit of a result. Loops are compiled for the vector instruction sets of the target and chosen when
//! they run (AVX-512, AVX2, NEON).
//!
//! A code is the saturating round-to-nearest-even of `x / scale`, a true f32 division, not a product with the reciprocal, which
//! may be one code apart. A scale is positive and finite; from 2^-126 up the results are those of exact arithmetic followed by
//! the roundings named. NaN elements give NaN, and zeros and underflowing values keep their sign.
//!
//! Every function panics, naming both lengths, where its slices differ in length.

mod band;
pub mod blocks;
pub(crate) mod pass;
mod source;
pub(crate) mod widen;

use burn_fp8_core::{Fp8Format, Overflow};
pub use pass::Amax;
use pass::{Code, Dequantized, Quantize, QuantizeAndMeasure, Value};
use rayon::prelude::*;
pub use source::Source;

/// Elements of a task: some ten microseconds of work, a hundred times what rayon spends on one.
const TASK: usize = 1 << 16;

/// Whether there are enough elements for two tasks, and threads to take them.
fn are_shared(elements: usize) -> bool {
    elements > TASK && rayon::current_num_threads() > 1
}

/// The largest finite magnitude of `x`.
pub fn amax<S: Source>(x: &[S]) -> Amax {
    match are_shared(x.len()) {
        true => x.par_chunks(TASK).map(pass::amax).reduce(Amax::default, Amax::union),
        false => pass::amax(x),
    }
}

/// The codes of `x / scale`.
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
    pairs(("x", x), ("codes", codes), |x, codes| {
        pass::run(Quantize { x, scale, y: codes, form: Code }, format, overflow);
    });
}

/// [`encode`] and [`amax`] in one read of `x`: for a scale that was chosen before.
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
    let encode = |x: &[S], codes: &mut [u8]| {
        let blocks = x.chunks(pass::BLOCK).zip(codes.chunks_mut(pass::BLOCK));
        blocks.fold(Amax::default(), |so_far, (x, codes)| {
            let mut largest = Default::default();
            let pass = QuantizeAndMeasure { x, scale, codes, largest: &mut largest };
            pass::run(pass, format, overflow);
            so_far.union(pass::of_block(x, largest))
        })
    };
    if !are_shared(x.len()) {
        return encode(x, codes);
    }
    let tasks = x.par_chunks(TASK).zip(codes.par_chunks_mut(TASK));
    tasks.map(|(x, codes)| encode(x, codes)).reduce(Amax::default, Amax::union)
}

/// The numbers that codes stand for, times `scale`: the product is rounded once, to f32.
///
/// # Panics
/// If `codes` and `x` differ in length.
pub fn decode(codes: &[u8], scale: f32, format: Fp8Format, x: &mut [f32]) {
    pairs(("codes", codes), ("x", x), |codes, x| {
        pass::run(pass::Decode { codes, scale, x }, format, Overflow::Saturate);
    });
}

/// The numbers that the codes of `x / scale` stand for, not multiplied by `scale`: the operands of an emulated product.
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
        pass::run(Quantize { x, scale, y: values, form: Value }, format, overflow);
    });
}

/// [`encode`] and [`round`] in one read of `x`.
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
    let both = |x: &[S], codes: &mut [u8], values: &mut [f32]| {
        pass::run(pass::QuantizeTwice { x, scale, codes, values }, format, overflow);
    };
    if !are_shared(x.len()) {
        return both(x, codes, values);
    }
    let outputs = codes.par_chunks_mut(TASK).zip(values.par_chunks_mut(TASK));
    x.par_chunks(TASK).zip(outputs).for_each(|(x, (codes, values))| both(x, codes, values));
}

/// [`encode`] and [`decode`] without the codes in between.
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
    pairs(("x", x), ("y", y), |x, y| {
        pass::run(Quantize { x, scale, y, form: Dequantized }, format, overflow);
    });
}

/// [`quantize_dequantize`] in place.
pub fn quantize_dequantize_in_place(
    x: &mut [f32],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
) {
    chunks(x, |x| pass::run(pass::QuantizeInPlace { x, scale }, format, overflow));
}

/// Every element times `factor`.
///
/// # Panics
/// If `x` and `y` differ in length.
pub fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    pairs(("x", x), ("y", y), |x, y| pass::scale(x, factor, y));
}

/// Multiplies every element by `factor`: the epilogue of an emulated product.
pub fn scale_in_place(x: &mut [f32], factor: f32) {
    chunks(x, |x| pass::scale_in_place(x, factor));
}

/// Runs `work` on corresponding pieces of two slices of the same length, which are named.
fn pairs<S: Sync, T: Send>(
    (x_name, x): (&str, &[S]),
    (y_name, y): (&str, &mut [T]),
    work: impl Fn(&[S], &mut [T]) + Sync,
) {
    same_length((x_name, x.len()), (y_name, y.len()));
    match are_shared(x.len()) {
        true => x.par_chunks(TASK).zip(y.par_chunks_mut(TASK)).for_each(|(x, y)| work(x, y)),
        false => work(x, y),
    }
}

/// Runs `work` on pieces of a slice.
fn chunks(x: &mut [f32], work: impl Fn(&mut [f32]) + Sync + Send) {
    match are_shared(x.len()) {
        true => x.par_chunks_mut(TASK).for_each(work),
        false => work(x),
    }
}

#[track_caller]
pub(crate) fn same_length((a, a_len): (&str, usize), (b, b_len): (&str, usize)) {
    assert!(
        a_len == b_len,
        "{a} has {a_len} elements and {b} has {b_len}; they must have the same number"
    );
}
