//! FP8 conversions over slices, with a scale: `x ≈ code × scale`.
//!
//! The functions here run on the calling thread; [`parallel`] has the same ones on rayon's current pool, with the same results
//! bit for bit. Loops are compiled for the vector instruction sets of the target and chosen when they run (AVX-512, AVX2, NEON).
//!
//! A code is the saturating round-to-nearest-even of `x / scale`, a true f32 division, not a product with the reciprocal, which
//! may be one code apart. A scale is positive and finite; from 2^-126 up the results are those of exact arithmetic followed by
//! the roundings named. NaN elements give NaN, and zeros and underflowing values keep their sign.
//!
//! Every function panics, naming both lengths, where its slices differ in length.

mod band;
pub mod blocks;
mod element;
mod moments;
#[cfg(feature = "rayon")]
pub mod parallel;
mod pass;
mod product;
#[cfg(target_arch = "x86_64")]
mod row;
mod rows;
mod source;
mod strips;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod widen;

pub use moments::{Kept, Moment, round_to_bf16, step};
pub use pass::Amax;
use pass::{Code, Dequantized, Quantize, QuantizeAndMeasure, Value};
pub use product::{matmul_block_codes, matmul_codes};
pub use rows::{Rows, matmul_rows};
pub use source::Source;

use crate::{Fp8Format, Overflow};

/// The largest finite magnitude of `x`.
pub fn amax<S: Source>(x: &[S]) -> Amax {
    pass::amax(x)
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
    same_length(("x", x.len()), ("codes", codes.len()));
    pass::run(Quantize { x, scale, y: codes, form: Code }, format, overflow);
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
    let blocks = x.chunks(pass::BLOCK).zip(codes.chunks_mut(pass::BLOCK));
    blocks.fold(Amax::default(), |so_far, (x, codes)| {
        let mut largest = Default::default();
        let pass = QuantizeAndMeasure { x, scale, codes, largest: &mut largest };
        pass::run(pass, format, overflow);
        so_far.union(pass::of_block(x, largest))
    })
}

/// The numbers that codes stand for, times `scale`: the product is rounded once, to f32.
///
/// # Panics
/// If `codes` and `x` differ in length.
pub fn decode(codes: &[u8], scale: f32, format: Fp8Format, x: &mut [f32]) {
    same_length(("codes", codes.len()), ("x", x.len()));
    pass::run(pass::Decode { codes, scale, x }, format, Overflow::Saturate);
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
    same_length(("x", x.len()), ("values", values.len()));
    pass::run(Quantize { x, scale, y: values, form: Value }, format, overflow);
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
    pass::run(pass::QuantizeTwice { x, scale, codes, values }, format, overflow);
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
    same_length(("x", x.len()), ("y", y.len()));
    pass::run(Quantize { x, scale, y, form: Dequantized }, format, overflow);
}

/// [`quantize_dequantize`] in place.
pub fn quantize_dequantize_in_place(
    x: &mut [f32],
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
) {
    pass::run(pass::QuantizeInPlace { x, scale }, format, overflow);
}

/// Every element times `factor`.
///
/// # Panics
/// If `x` and `y` differ in length.
pub fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    same_length(("x", x.len()), ("y", y.len()));
    pass::scale(x, factor, y);
}

/// Multiplies every element by `factor`: the epilogue of an emulated product.
pub fn scale_in_place(x: &mut [f32], factor: f32) {
    pass::scale_in_place(x, factor);
}

#[track_caller]
fn same_length((a, a_len): (&str, usize), (b, b_len): (&str, usize)) {
    assert!(
        a_len == b_len,
        "{a} has {a_len} elements and {b} has {b_len}; they must have the same number"
    );
}
