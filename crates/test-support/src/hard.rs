//! Inputs that are hard: ties and their neighbours, subnormals, infinities, NaN, outliers, amaxes at which a scale turns.

use burn_fp8_core::Fp8Format;

use crate::fp8::{FORMATS, largest, magnitudes, past_largest};
use crate::random::Random;

/// Scales from the smallest to the largest, powers of two or not, some so that quotients are f32 subnormals.
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

/// Numbers that are no scale.
pub const NO_SCALES: [f32; 5] = [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40];

/// The numbers of a format, the middles between neighbours, the limits at which they overflow, and the f32 before and after each, of both
/// signs; times a scale, rounded once: what lands on a tie, or beside one, after the division.
pub fn boundaries(format: Fp8Format, scale: f32) -> Vec<f32> {
    let scaled = |x: f64| (x * f64::from(scale)) as f32;
    let pairs = magnitudes(format).windows(2);
    let mut values: Vec<f32> =
        pairs.flat_map(|pair| [pair[0], (pair[0] + pair[1]) / 2.0]).map(scaled).collect();
    let (largest, past) = (f64::from(largest(format)), past_largest(format));
    let beyond = [largest, largest * 1.01, (largest + past) / 2.0, largest * 1.1, past];
    values.extend(beyond.map(scaled));
    values.push(scaled(2.0 * past));
    values.iter().flat_map(|x| [x.next_down(), *x, x.next_up()]).flat_map(|x| [x, -x]).collect()
}

/// The boundaries of both formats, and numbers at the limits of f32, both infinities, NaN of several payloads, of both signs.
pub fn special() -> Vec<f32> {
    let mut values = vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 1e-45, 1e-40];
    values.extend([1.0, 3.0, 0.1, 1e30, 1e-30].map(|x: f32| x));
    values.extend([f32::from_bits(0x7F80_0001), f32::from_bits(0x7FFF_FFFF)]);
    values.extend(values.clone().iter().map(|x| -x));
    values.extend(FORMATS.into_iter().flat_map(|format| boundaries(format, 1.0)));
    values
}

/// f32 of every exponent: all combinations of the highest mantissa bits with the lowest, around which roundings change, both
/// signs; with subnormals, infinities and NaN of many payloads.
pub fn every_exponent() -> Vec<f32> {
    // Sign, exponent, six bits of mantissa; and the lowest bits.
    let lows = [0, 1, 2, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFF, 0x1_FFFE];
    (0..1u32 << 15).flat_map(|high| lows.map(|low| f32::from_bits((high << 17) | low))).collect()
}

/// Magnitudes around which the rounding of a block's scale turns, by their mantissa bits.
const TURNS: [u32; 6] = [0, 3 << 21, (3 << 21) + 1, 0x78_0000, 0x77_FFFF, 0x7F_FFFF];

/// Runs of 16 numbers that are hard in different ways: any bits, zeros of both signs, nothing finite, subnormals, one outlier, and
/// magnitudes at which the rounding of a scale turns, with ties among their quotients.
pub fn runs(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut kind = 0;
    let mut number = |i: usize| {
        if i.is_multiple_of(16) {
            kind = (random.bits() >> 32) as u32;
        }
        let random = (random.bits() >> 32) as u32;
        let magnitude = match kind % 8 {
            0 => random & 0x7FFF_FFFF,
            1 => 0,
            2 => 0x7F80_0000 | (random & 0x40_0000),
            3 => random & 0x7F_FFFF,
            4 if i % 16 == (kind >> 8) as usize % 16 => 0x7000_0000 | (random & 0x7F_FFFF),
            4 | 5 => 0x3F00_0000 | (random & 0xFF_FFFF),
            _ => {
                let exponent = 60 + (kind >> 8) % 150 - (random >> 8) % 12;
                (exponent << 23) | TURNS[random as usize % TURNS.len()]
            }
        };
        f32::from_bits(random & 0x8000_0000 | magnitude)
    };
    (0..len).map(&mut number).collect()
}

/// Finite numbers of all magnitudes from `2^(lowest - 127)` up, in runs of 64: of any size, of one size, at which the amax decides, or zeros.
/// `lowest` is 0 for subnormal ones too; a device that takes those for 0 wants 30.
pub fn extremes(len: usize, lowest: u32) -> Vec<f32> {
    let mut random = Random(11);
    let mut number = |index: usize| {
        let run = (index / 64) as u32;
        let bits = random.bits();
        let any = lowest + (bits >> 32) as u32 % (255 - lowest);
        let exponent = if run % 5 == 3 { run * 7 % 200 + 40 } else { any };
        let mantissa = match random.below(TURNS.len() + 1) {
            turn if turn < TURNS.len() => TURNS[turn],
            _ => bits as u32 & 0x7F_FFFF,
        };
        match run % 5 {
            4 => 0.0,
            _ => f32::from_bits(bits as u32 & 0x8000_0000 | (exponent << 23) | mantissa),
        }
    };
    (0..len).map(&mut number).collect()
}

/// A normal distribution, of which one number of a thousand is a hundred times as large.
pub fn outliers(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut number = || {
        let x = random.normal() as f32;
        if random.below(1000) == 0 { 100.0 * x } else { x }
    };
    (0..len).map(|_| number()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_number_occurs() {
        let special = special();
        for (name, values) in [("special", &special), ("runs", &runs(4096, 1))] {
            assert!(values.iter().any(|x| x.is_nan()), "{name}");
            assert!(values.iter().any(|x| x.is_subnormal()), "{name}");
            for sign in [1.0, -1.0] {
                assert!(values.contains(&(sign * f32::INFINITY)), "{name}");
                assert!(values.iter().any(|x| *x == 0.0 && x.signum() == sign), "{name}");
            }
        }
        // The middles beside 1 and beside the largest numbers.
        for tie in [1.0625, 1.125, 464.0, 61440.0] {
            assert!(special.contains(&tie) && special.contains(&-tie), "{tie}");
        }
        assert_eq!(every_exponent().len(), 1 << 18);
        let extremes = extremes(1 << 14, 30);
        assert!(extremes.iter().all(|x| x.is_finite() && (*x == 0.0 || x.abs() > 1e-30)));
        assert!(outliers(10_000, 1).iter().any(|x| x.abs() > 20.0));
    }
}
