//! A block of codes, read and multiplied.

use burn_fp8_core::Fp8Format;
use cubecl::prelude::*;

use super::Job;
use super::float::{MINUS, NAN, PLUS};
use crate::bits::Quad;

/// [`RowCodes`](super::RowCodes) in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Operand {
    codes: Array<u32>,
    pub(super) rows: usize,
    pub(super) stride: usize,
}

/// The products of a block.
#[derive(CubeType)]
pub(super) struct Block {
    /// Four each. Products that are not finite are some finite number here.
    pub(super) terms: Sequence<Terms>,
    /// What is not finite among them: [`PLUS`], [`MINUS`], [`NAN`].
    pub(super) class: u32,
}

/// Four terms of a sum.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Terms {
    /// The product of both significands, with hidden bits.
    pub(super) significand: Quad,
    /// The hardware's exponent, biased as that of f32; 0 where the product is.
    pub(super) exponent: Quad,
    /// 0 where the product is positive.
    pub(super) sign: Quad,
}

#[cube]
impl Block {
    /// The block that begins at these places of both operands, whose chain has `left` codes more.
    pub(super) fn read(
        a: &Operand,
        b: &Operand,
        of_a: usize,
        of_b: usize,
        left: usize,
        #[comptime] job: Job,
    ) -> Block {
        let products = comptime!(job.accumulator.products as usize);
        let count = min(left, products);
        let mut terms = Sequence::<Terms>::new();
        let mut class = 0u32;
        #[unroll]
        for i in 0..comptime!(products.div_ceil(4)) {
            let first = comptime!(4 * i);
            // Zeros beyond the end: their products change nothing.
            let mut word_a = 0u32;
            let mut word_b = 0u32;
            if count > first {
                word_a = four_codes(a, of_a + first, count - first, job.in_words);
                word_b = four_codes(b, of_b + first, count - first, job.in_words);
            }
            terms.push(products_of(word_a, word_b, job.formats));
            if has_special(word_a, job.formats[0]) || has_special(word_b, job.formats[1]) {
                class |= class_of(word_a, word_b, job.formats);
            }
        }
        Block { terms, class }
    }
}

/// Four codes from a place on, the first in the lowest byte; zeros instead of those that are not among the `left`.
#[cube]
fn four_codes(operand: &Operand, first: usize, left: usize, #[comptime] in_words: bool) -> u32 {
    let mut codes = operand.codes[first / 4];
    if comptime!(!in_words) {
        let skipped = first % 4;
        // The next word is read where it has codes that are wanted, so that it is in the buffer.
        if skipped > 0 {
            let bits = u32::cast_from(skipped) * 8;
            codes >>= bits;
            if skipped + left > 4 {
                codes |= operand.codes[first / 4 + 1] << (32 - bits);
            }
        }
    }
    if left < 4 {
        codes &= (1u32 << (u32::cast_from(left) * 8)) - 1;
    }
    codes
}

/// Each code of a word in a word of its own.
#[cube]
fn apart(word: u32) -> Quad {
    let mut codes = Quad::new(0u32);
    #[unroll]
    for i in 0..4usize {
        codes[i] = (word >> comptime!(8 * i as u32).runtime()) & 0xFF;
    }
    codes
}

/// The exponent field of codes, that of the smallest normal number in subnormal ones.
#[cube]
fn exponents(codes: Quad, #[comptime] format: Fp8Format) -> Quad {
    let field = (codes & Quad::new(0x7F)) >> Quad::new(comptime!(format.mantissa_bits()).runtime());
    max(field, Quad::new(1u32))
}

/// The significand of codes, with the hidden bit.
#[cube]
fn significands(codes: Quad, #[comptime] format: Fp8Format) -> Quad {
    let m = comptime!(format.mantissa_bits());
    let normal = min((codes & Quad::new(0x7F)) >> Quad::new(m.runtime()), Quad::new(1u32));
    let mask = comptime!((1u32 << m) - 1).runtime();
    (codes & Quad::new(mask)) | (normal << Quad::new(m.runtime()))
}

#[cube]
fn products_of(word_a: u32, word_b: u32, #[comptime] formats: [Fp8Format; 2]) -> Terms {
    let (a, b) = (apart(word_a), apart(word_b));
    let significand = significands(a, formats[0]) * significands(b, formats[1]);
    let bias = comptime!(127 - formats[0].exponent_bias() - formats[1].exponent_bias());
    let sum = exponents(a, formats[0]) + exponents(b, formats[1]) + Quad::new(bias.runtime());
    let zero = Quad::new(0u32);
    let exponent = select_many(significand.equal(zero), zero, sum);
    Terms { significand, exponent, sign: (a ^ b) & Quad::new(0x80) }
}

/// The first magnitude that is no finite number.
fn first_special(format: Fp8Format) -> u32 {
    match format {
        Fp8Format::E4M3 => 0x7F,
        Fp8Format::E5M2 => 0x7C,
    }
}

/// Whether one of the codes of a word is NaN or infinite.
#[cube]
fn has_special(word: u32, #[comptime] format: Fp8Format) -> bool {
    // The sum of a magnitude and this reaches the sign bit then, and never goes beyond.
    let to_sign = comptime!((0x80 - first_special(format)) * 0x0101_0101).runtime();
    ((word & 0x7F7F_7F7F) + to_sign) & 0x8080_8080u32 != 0
}

/// The classes of those products of two words that are not finite.
#[cube]
fn class_of(word_a: u32, word_b: u32, #[comptime] formats: [Fp8Format; 2]) -> u32 {
    let mut class = 0u32;
    #[unroll]
    for i in 0..4usize {
        let shift = comptime!(8 * i as u32).runtime();
        let (a, b) = ((word_a >> shift) & 0xFF, (word_b >> shift) & 0xFF);
        let (of_a, of_b) = (a & 0x7F, b & 0x7F);
        let special_a = comptime!(first_special(formats[0])).runtime();
        let special_b = comptime!(first_special(formats[1])).runtime();
        if of_a >= special_a || of_b >= special_b {
            let infinity = select((a ^ b) & 0x80 == 0, PLUS, MINUS);
            // No other magnitude times an infinite one is NaN but 0.
            let is_nan = is_nan(of_a, formats[0]) || is_nan(of_b, formats[1]);
            class |= select(is_nan || of_a == 0 || of_b == 0, NAN, infinity);
        }
    }
    class
}

#[cube]
fn is_nan(magnitude: u32, #[comptime] format: Fp8Format) -> bool {
    let infinite = comptime!(match format {
        Fp8Format::E4M3 => 0x7Eu32,
        Fp8Format::E5M2 => 0x7C,
    });
    magnitude > infinite
}
