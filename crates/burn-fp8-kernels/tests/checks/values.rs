//! Inputs that reach every special case.

use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_kernels::Element;

use super::numbers_in;

pub const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];
pub const OVERFLOWS: [Overflow; 3] =
    [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating];

/// Powers of two and others, from the smallest to the largest.
pub const SCALES: [f32; 12] = [
    1.0,
    0.25,
    8192.0,
    0.1,
    3.7e-3,
    0.999_999_94,
    1.999_999_9,
    f32::MIN_POSITIVE,
    1.5e-38,
    7.3e-20,
    1e30,
    f32::MAX,
];

/// Every f16 or bf16.
pub fn every_half(element: Element) -> Vec<f32> {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    numbers_in(&bytes, element)
}

/// Codes as numbers, the middles between neighbours, and the f32 before and after each, times a scale in exact arithmetic
/// followed by one rounding: what lands on a tie, or beside one, after the division.
pub fn boundaries(format: Fp8Format, scale: f32) -> Vec<f32> {
    let mut values = Vec::new();
    let numbers: Vec<f64> = (0..=0x7E).map(|code| f64::from(format.decode(code))).collect();
    let numbers: Vec<f64> = numbers.into_iter().filter(|x| x.is_finite()).collect();
    for pair in numbers.windows(2) {
        for x in [pair[0], (pair[0] + pair[1]) / 2.0] {
            let x = (x * f64::from(scale)) as f32;
            values.extend([x.next_down(), x, x.next_up(), -x, -x.next_up(), -x.next_down()]);
        }
    }
    let max = (f64::from(format.max()) * f64::from(scale)) as f32;
    for factor in [1.0, 1.0357, 1.0714, 1.1, 1.125, 2.0] {
        let x = max * factor;
        values.extend([x, x.next_up(), x.next_down(), -x]);
    }
    values
}

/// f32 of every exponent: all combinations of the highest mantissa bits with the lowest, around which roundings change, both
/// signs; with subnormals, infinities and NaN of many payloads.
pub fn every_exponent() -> Vec<f32> {
    let mut values = Vec::new();
    for high in 0..1u32 << 15 {
        // Sign, exponent, six bits of mantissa.
        for low in [0, 1, 2, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFF, 0x1_FFFE] {
            values.push(f32::from_bits((high << 17) | low));
        }
    }
    values
}

/// Numbers with random bits: a linear congruential generator.
pub fn random_bits(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f32::from_bits((state >> 32) as u32)
    };
    (0..len).map(|_| next()).collect()
}

/// Finite numbers of both signs, magnitudes spread over `2^-exponent..2^exponent`.
pub fn spread(len: usize, exponent: i32, seed: u64) -> Vec<f32> {
    let bits = random_bits(2 * len, seed);
    bits.chunks(2)
        .map(|pair| {
            let [a, b] = [pair[0], pair[1]].map(|x| x.to_bits() as f32 / u32::MAX as f32);
            let magnitude = ((a * 2.0 - 1.0) * exponent as f32).exp2();
            if b < 0.5 { -magnitude } else { magnitude }
        })
        .collect()
}

/// Runs of 16 numbers that are hard in different ways: any bits, zeros of both signs, nothing finite, subnormals, one outlier, and
/// magnitudes at which the rounding of a scale turns, with ties among their quotients.
pub fn adversarial(len: usize, seed: u64) -> Vec<f32> {
    let bits = random_bits(2 * len, seed);
    let number = |i: usize| {
        let [kind, random] = [bits[len + i / 16], bits[i]].map(f32::to_bits);
        let sign = random & 0x8000_0000;
        let magnitude = match kind % 8 {
            0 => random & 0x7FFF_FFFF,
            1 => 0,
            2 => 0x7F80_0000 | (random & 0x40_0000),
            3 => random & 0x7F_FFFF,
            4 if i % 16 == (kind >> 8) as usize % 16 => 0x7000_0000 | (random & 0x7F_FFFF),
            4 | 5 => 0x3F00_0000 | (random & 0xFF_FFFF),
            _ => {
                let mantissas = [0, 3 << 21, (3 << 21) + 1, 0x78_0000, 0x77_FFFF, 0x7F_FFFF];
                let exponent = 60 + (kind >> 8) % 150 - (random >> 8) % 12;
                (exponent << 23) | mantissas[random as usize % mantissas.len()]
            }
        };
        f32::from_bits(sign | magnitude)
    };
    (0..len).map(number).collect()
}

/// Bits, with every NaN made equal.
pub fn comparable(x: f32) -> u32 {
    if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }
}
