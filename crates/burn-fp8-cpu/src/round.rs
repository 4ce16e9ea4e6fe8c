//! Results rounded to half precision.

use half::{bf16, f16};

/// Rounded to nearest even, without branches.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    let quiet = bits | 0x40_0000;
    let bits = if bits & 0x7FFF_FFFF > 0x7F80_0000 { quiet } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

/// Rounded to nearest even, subnormals included, without branches.
#[inline(always)]
pub(crate) fn to_f16(x: f32) -> f16 {
    let (sign, magnitude) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7FFF_FFFF);
    // From bias 127 to bias 15, rounding off 13 bits.
    let normal =
        magnitude.wrapping_add(0xFFF + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    // Added to 1/2, a number has 2^-24, the unit of subnormals, as its last bit.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    // 65520 is half way between the largest f16 and the power of two after it.
    let bits = if magnitude >= 65520f32.to_bits() { 0x7C00 } else { finite };
    let bits = if magnitude > 0x7F80_0000 { 0x7E00 } else { bits };
    f16::from_bits((bits | sign) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `half`, on every upper half of an f32 and lower halves around ties.
    #[test]
    fn results_are_rounded_as_half_rounds_them() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001, 0x3000, 0xFFFF] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (ours, theirs) = (to_bf16(x), bf16::from_f32(x));
                assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x:e}");
                let (ours, theirs) = (to_f16(x), f16::from_f32(x));
                assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x:e}");
            }
        }
    }
}
