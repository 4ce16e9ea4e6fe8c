//! Numbers as files hold them, and which of them cannot be scales or weights.

use burn_fp8_core::Fp8Format;
use half::{bf16, f16};

use crate::safetensors::Dtype;

/// Whether [`floats`] reads elements of this type as the numbers that they are.
pub(crate) const fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16)
}

/// Little-endian F32, BF16 or F16 as f32, exactly, or else bytes as E8M0.
pub(crate) fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::BF16 => {
            bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.iter().map(|byte| e8m0(*byte)).collect(),
    }
}

/// E8M0 of OCP's microscaling formats, version 1.0: byte b is 2^(b − 127), 255 is NaN.
const fn e8m0(byte: u8) -> f32 {
    match byte {
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((byte as u32) << 23),
    }
}

/// Whether a number can be a scale: positive and finite.
pub(crate) fn is_scale(scale: f32) -> bool {
    scale > 0.0 && scale.is_finite()
}

/// Whether a scale is a power of two.
pub(crate) fn is_power_of_two(scale: f32) -> bool {
    let bits = scale.to_bits();
    let (exponent, mantissa) = (bits >> 23, bits & 0x7F_FFFF);
    match exponent {
        0 => mantissa.is_power_of_two(),
        1..=254 => mantissa == 0,
        _ => false,
    }
}

/// The place of the first NaN among E4M3 codes.
pub(crate) fn first_nan(codes: &[u8]) -> Option<usize> {
    codes.iter().position(|code| Fp8Format::E4M3.is_nan(*code))
}

#[cfg(test)]
mod tests {
    use super::{e8m0, is_power_of_two, is_scale};

    #[test]
    fn e8m0_is_a_power_of_two() {
        for byte in 0..255_u8 {
            let expected = 2_f64.powi(i32::from(byte) - 127);
            assert_eq!(f64::from(e8m0(byte)), expected, "{byte}");
            assert!(is_power_of_two(e8m0(byte)) && is_scale(e8m0(byte)));
        }
        assert!(e8m0(255).is_nan() && !is_scale(e8m0(255)));
    }

    #[test]
    fn other_numbers_are_no_powers_of_two() {
        for number in
            [0.0, -0.0, -1.0, 3.0, 0.3, 1.5e-45 * 3.0, f32::INFINITY, f32::NAN, -f32::INFINITY]
        {
            assert!(!is_power_of_two(number), "{number}");
        }
        assert!(is_power_of_two(f32::from_bits(1)));
    }
}
