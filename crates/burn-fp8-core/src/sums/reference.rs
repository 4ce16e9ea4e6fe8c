//! One sum after the other, in integers of 128 bits: to read, and to compare what is fast with.

use super::{Accumulation, Accumulator, RunningSum, SplitK, chains, join_parts};
use crate::Fp8Format;

/// The NaN that tensor cores write.
pub const CANONICAL_NAN: f32 = f32::from_bits(0x7FFF_FFFF);

/// No exponent counts below this one.
///
/// Of the models of Ada in MATLAB-tensor-core and mmaemu (`min_exp`); products of codes are larger.
const LOWEST_EXPONENT: i32 = -132;

/// A term `significand · 2^unit`, whose exponent is that of the hardware's alignment.
#[derive(Clone, Copy)]
struct Term {
    significand: i128,
    unit: i32,
    exponent: i32,
}

/// Significand with the hidden bit, exponent of its lowest bit, and exponent, that of the format's smallest normal number in subnormal ones.
fn parts(bits: u32, mantissa: u32, exponent_bits: u32, bias: i32) -> (i128, i32, i32) {
    let exponent = (bits >> mantissa) & ((1 << exponent_bits) - 1);
    let fraction = bits & ((1 << mantissa) - 1);
    let is_normal = exponent != 0;
    let significand = i128::from(fraction | u32::from(is_normal) << mantissa);
    let exponent = exponent.max(1) as i32 - bias;
    let is_negative = bits >> (mantissa + exponent_bits) & 1 == 1;
    (if is_negative { -significand } else { significand }, exponent - mantissa as i32, exponent)
}

fn of_code(code: u8, format: Fp8Format) -> (i128, i32, i32) {
    let bias = format.exponent_bias() as i32;
    parts(u32::from(code), format.mantissa_bits(), format.exponent_bits(), bias)
}

fn of_f32(x: f32) -> Term {
    let (significand, unit, exponent) = parts(x.to_bits(), 23, 8, 127);
    // A subnormal number has the exponent of its highest bit here: a running sum is normalized.
    let highest =
        significand.unsigned_abs().checked_ilog2().map_or(exponent, |bit| unit + bit as i32);
    Term { significand, unit, exponent: highest }
}

/// `significand · 2^unit` in units of `2^to`, cut toward zero.
fn cut(significand: i128, unit: i32, to: i32) -> i128 {
    match unit - to {
        left @ 0.. => significand << left,
        right => {
            let magnitude =
                significand.unsigned_abs().checked_shr(right.unsigned_abs()).unwrap_or(0);
            significand.signum() * magnitude as i128
        }
    }
}

/// A sum in units of `2^unit`, cut to so many fraction bits of its own. A zero is +0.
fn to_f32(sum: i128, unit: i32, fraction: u32) -> f32 {
    let Some(highest) = sum.unsigned_abs().checked_ilog2() else { return 0.0 };
    let exponent = (unit + highest as i32).max(-126);
    if exponent > 127 {
        return f32::INFINITY.copysign(sum as f32);
    }
    let last = (exponent - fraction as i32).max(unit);
    let kept = cut(sum, unit, last);
    // Exact: at most 24 bits, and a multiple of the smallest number.
    (kept as f64 * 2f64.powi(last)) as f32 + 0.0
}

/// What a code stands for.
fn value(code: u8, format: Fp8Format) -> f32 {
    let (significand, unit, _) = of_code(code, format);
    match () {
        () if format.is_nan(code) => f32::NAN,
        () if format.is_infinite(code) => f32::INFINITY.copysign(significand as f32),
        () => significand as f32 * 2f32.powi(unit),
    }
}

/// One step of a chain: a block of products of `a` and `b`, each times `2^exponent` (the scales of a block of MXFP8; else 0), added to `c`.
///
/// Where the exact sum is not finite the result is its class in IEEE 754, with the NaN of tensor cores. Of `a` and `b` at most
/// [`Accumulator::products`].
///
/// # Panics
/// If `a` and `b` are not of one length, or the accumulator is [out of range](Accumulator::validate) where integers of 128 bits do not hold it.
pub fn step(
    accumulator: Accumulator,
    [a, b]: [&[u8]; 2],
    [format_a, format_b]: [Fp8Format; 2],
    exponent: i32,
    c: f32,
) -> f32 {
    assert!(a.len() == b.len(), "{} codes are not multiplied by {}", a.len(), b.len());
    // Finite products are far below what f32 holds: only what is not finite makes this so.
    let class: f32 = a.iter().zip(b).map(|(a, b)| value(*a, format_a) * value(*b, format_b)).sum();
    let class = class + c;
    if !class.is_finite() {
        return if class.is_nan() { CANONICAL_NAN } else { class };
    }
    let products = a.iter().zip(b).filter_map(|(a, b)| {
        let (x, of_x, exponent_x) = of_code(*a, format_a);
        let (y, of_y, exponent_y) = of_code(*b, format_b);
        let (unit, exponent) = (of_x + of_y + exponent, exponent_x + exponent_y + exponent);
        (x * y != 0).then_some(Term { significand: x * y, unit, exponent })
    });
    let mut terms: Vec<Term> = products.collect();
    if accumulator.running == RunningSum::Early && c != 0.0 {
        terms.push(of_f32(c));
    }
    let largest = terms.iter().map(|term| term.exponent).max();
    let largest = largest.unwrap_or(LOWEST_EXPONENT).max(LOWEST_EXPONENT);
    let unit = largest - accumulator.fraction as i32;
    let sum = terms.iter().map(|term| cut(term.significand, term.unit, unit)).sum();
    let sum = to_f32(sum, unit, accumulator.result);
    match accumulator.running {
        RunningSum::Early => sum,
        RunningSum::Late => sum + c,
    }
}

/// Σ a·b as hardware adds it: chains over K from +0, added in f32.
///
/// # Panics
/// As [`step`], and for an accumulator without products or with chains of 0.
pub fn dot(
    accumulator: Accumulator,
    [a, b]: [&[u8]; 2],
    formats: [Fp8Format; 2],
    accumulation: Accumulation,
    split: Option<SplitK>,
) -> f32 {
    let chain = |pieces: &super::Chain| {
        let of = |codes: &[u8]| -> Vec<u8> {
            pieces.iter().flat_map(|piece| codes[piece.clone()].iter().copied()).collect()
        };
        let block = accumulator.products as usize;
        let [a, b] = [of(a), of(b)];
        let blocks = a.chunks(block).zip(b.chunks(block));
        blocks.fold(0.0, |c, (a, b)| step(accumulator, [a, b], formats, 0, c))
    };
    let add = |sum: f32, chain: f32| sum + chain;
    let parts = chains(a.len(), accumulator.chain, accumulation, split);
    let parts: Vec<f32> = parts.iter().map(|part| part.iter().map(chain).fold(0.0, add)).collect();
    let sum = join_parts(&parts, split);
    if sum.is_nan() { CANONICAL_NAN } else { sum }
}

/// The product of a sum and the scales of both operands, as cuBLASLt's epilogue makes it: `fma(sum, RN(a · b), +0)`.
pub fn scaled(sum: f32, [a, b]: [f32; 2]) -> f32 {
    let y = sum.mul_add(a * b, 0.0);
    if y.is_nan() { CANONICAL_NAN } else { y }
}
