//! A step of a chain: a block of products and the running sum, added as hardware does.

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::{Accumulator, RunningSum};
use cubecl::prelude::*;

use super::block::Terms;
use super::float::{FRACTION, add, exponent, significand};
use crate::bits::Quad;

/// The significand of the largest product.
fn largest_product(formats: [Fp8Format; 2]) -> u64 {
    formats.iter().map(|format| (2u64 << format.mantissa_bits()) - 1).product()
}

/// The fraction bits of products.
fn product_bits(formats: [Fp8Format; 2]) -> u32 {
    formats[0].mantissa_bits() + formats[1].mantissa_bits()
}

/// What the terms of one sign of a block come to at most, in units of the last bit that is kept.
pub(super) fn largest_sum(accumulator: Accumulator, formats: [Fp8Format; 2]) -> u64 {
    let Accumulator { products, fraction, .. } = accumulator;
    let product = (largest_product(formats) << fraction).div_ceil(1 << product_bits(formats));
    u64::from(products) * product + (2 << fraction)
}

/// The bits of the running sum after a block. It is a normal number or +0: all terms are multiples of the smallest product, and far from f32's largest
/// number.
#[cube]
pub(super) fn add_block(
    terms: &Sequence<Terms>,
    running: u32,
    #[comptime] accumulator: Accumulator,
    #[comptime] formats: [Fp8Format; 2],
) -> u32 {
    let is_early = comptime!(accumulator.running == RunningSum::Early);
    let mut exponents = Quad::new(0u32);
    #[unroll]
    for i in 0..terms.len().comptime() {
        exponents = max(exponents, terms.index(i).exponent);
    }
    let mut largest = max(max(exponents[0], exponents[1]), max(exponents[2], exponents[3]));
    if comptime!(is_early) {
        largest = max(largest, exponent(running));
    }

    let mut plus = Quad::new(0u32);
    let mut minus = Quad::new(0u32);
    #[unroll]
    for i in 0..terms.len().comptime() {
        let term = terms.index(i);
        let below = Quad::new(largest) - term.exponent;
        let kept = cut(term.significand, below, comptime!(product_bits(formats)), accumulator);
        let zero = Quad::new(0u32);
        let positive = select_many(term.sign.equal(zero), kept, zero);
        plus += positive;
        minus += kept - positive;
    }
    let mut plus = plus[0] + plus[1] + plus[2] + plus[3];
    let mut minus = minus[0] + minus[1] + minus[2] + minus[3];
    if comptime!(is_early) {
        let below = Quad::new(largest - exponent(running));
        let kept = cut(Quad::new(significand(running)), below, FRACTION, accumulator);
        let positive = select(running >> 31 == 0, kept[0], 0);
        plus += positive;
        minus += kept[0] - positive;
    }
    let sum = cut_sum(plus, minus, largest, accumulator);
    if comptime!(is_early) { sum } else { add(sum, running) }
}

/// Significands of so many fraction bits, whose exponents are so far `below` the largest, in units of the last bit that is kept, cut toward zero.
#[cube]
fn cut(
    significands: Quad,
    below: Quad,
    #[comptime] bits: u32,
    #[comptime] accumulator: Accumulator,
) -> Quad {
    let more = comptime!(accumulator.fraction.saturating_sub(bits)).runtime();
    let fewer = comptime!(bits.saturating_sub(accumulator.fraction)).runtime();
    // 31 bits hold what is shifted to the left: a larger one has no sum that fits 32.
    let right = min(below + Quad::new(fewer), Quad::new(31u32));
    (significands << Quad::new(more)) >> right
}

/// The difference of two sums, as f32 bits, cut toward zero to the fraction bits of a result.
#[cube]
fn cut_sum(plus: u32, minus: u32, largest: u32, #[comptime] accumulator: Accumulator) -> u32 {
    let is_negative = minus > plus;
    let magnitude = select(is_negative, minus - plus, plus - minus);
    if magnitude == 0 {
        0u32.runtime()
    } else {
        let zeros = magnitude.leading_zeros();
        // The highest bit of all is the hidden one.
        let mask = comptime!(0x7FFF_FFFFu32 & (u32::MAX << (31 - accumulator.result))).runtime();
        let fraction = ((magnitude << zeros) & mask) >> 8;
        let exponent = largest + comptime!(31 - accumulator.fraction).runtime() - zeros;
        (u32::cast_from(is_negative) << 31) | (exponent << 23) | fraction
    }
}
