//! E8M0: the scale of an MXFP8 block, one byte. Byte `b` stands for `2^(b − 127)`, 255 for NaN (OCP Microscaling Formats, 5.4.1).

use crate::{Fp8Format, ScaleRounding};

/// The byte of NaN.
pub const NAN: u8 = 255;

/// The scale of a block whose largest finite magnitude is `amax`, at least 0. 0 gives 0: such a block has no finite number but zeros, whatever its scale.
#[inline]
pub fn from_amax(amax: f32, format: Fp8Format, rounding: ScaleRounding) -> u8 {
    debug_assert!(amax.is_finite() && amax >= 0.0, "amax = {amax} is not a finite magnitude");
    if amax == 0.0 {
        return 0;
    }
    let emax = log2_down(format.max());
    let exponent = match rounding {
        ScaleRounding::Rceil => return (round_up(amax / format.max()).to_bits() >> 23) as u8,
        ScaleRounding::Floor => log2_down(amax) - emax,
        ScaleRounding::Ceil => log2_up(amax) - emax,
        ScaleRounding::Even => {
            // Half of the last bit of the format's mantissa, in [1, 2).
            let half = f64::from(format.epsilon()) / 2.0;
            let power = log2_down(amax);
            let mantissa = f64::from(amax) / 2f64.powi(power);
            power + i32::from(mantissa >= 2.0 - half) - emax
        }
    };
    (exponent.clamp(-127, 127) + 127) as u8
}

/// The smallest scale that is at least `x`, of numbers from 0 on: 2^-127 for anything smaller, 2^127 for anything larger.
#[inline(always)]
pub fn round_up(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    // 2^-127, and 2^127.
    let (lowest, highest) = (1 << 22, 254 << 23);
    let bits = x.to_bits();
    let rounded = ((bits + MANTISSA) & !MANTISSA).min(highest);
    f32::from_bits(if bits <= lowest { lowest } else { rounded })
}

/// The scale that a byte stands for. That of 0 is 2^-127, a subnormal f32.
#[inline]
pub fn decode(byte: u8) -> f32 {
    match byte {
        0 => f32::MIN_POSITIVE / 2.0,
        NAN => f32::NAN,
        byte => f32::from_bits(u32::from(byte) << 23),
    }
}

/// The byte of a scale that is a power of two from 2^-127 to 2^127, or NaN; else none.
pub fn encode(scale: f32) -> Option<u8> {
    if scale.is_nan() {
        return Some(NAN);
    }
    let byte = if scale == decode(0) { 0 } else { (scale.to_bits() >> 23) as u8 };
    (scale > 0.0 && byte != NAN && decode(byte) == scale).then_some(byte)
}

/// `⌊log2 x⌋` of a positive, finite number.
#[inline]
fn log2_down(x: f32) -> i32 {
    // Every f32 is a normal f64.
    (f64::from(x).to_bits() >> 52) as i32 - 1023
}

/// `⌈log2 x⌉` of a positive, finite number.
#[inline]
fn log2_up(x: f32) -> i32 {
    let is_power = f64::from(x).to_bits() << 12 == 0;
    log2_down(x) + i32::from(!is_power)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against bytes that are found by comparing with all of them.
    #[test]
    fn numbers_are_rounded_up_to_scales() {
        let mut numbers: Vec<f32> = (0..NAN).map(decode).collect();
        numbers.extend([0.0, f32::from_bits(1), f32::MAX]);
        for x in numbers.clone() {
            numbers.extend([x.next_up(), x.next_down(), x * 1.5]);
        }
        for x in numbers.into_iter().filter(|x| (0.0..=f32::MAX).contains(x)) {
            let expected = (0..NAN).map(decode).find(|scale| *scale >= x);
            assert_eq!(round_up(x), expected.unwrap_or(decode(NAN - 1)), "{x:e}");
        }
    }

    #[test]
    fn every_byte_is_a_power_of_two_and_back() {
        for byte in 0..=u8::MAX {
            let scale = decode(byte);
            assert_eq!(encode(scale), Some(byte));
            if byte != NAN {
                assert_eq!(f64::from(scale), 2f64.powi(i32::from(byte) - 127));
            }
        }
        for scale in
            [0.0, -1.0, 3.0, f32::INFINITY, f32::from_bits(1), f32::MAX, -0.0, -f32::MIN_POSITIVE]
        {
            assert_eq!(encode(scale), None, "{scale}");
        }
    }
}
