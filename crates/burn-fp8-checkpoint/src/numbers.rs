//! Numbers as files hold them, and which of them cannot be scales or weights.

use burn_fp8_core::{Fp8Format, e8m0};
use half::{bf16, f16};

use crate::safetensors::Dtype;

/// Whether [`floats`] reads elements of this type as the numbers that they are.
pub(crate) const fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16)
}

/// Little-endian F32, BF16 or F16 as f32, exactly, or else bytes as E8M0.
pub(crate) fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => each(bytes, f32::from_le_bytes),
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
        _ => each(bytes, |[byte]| e8m0::decode(byte)),
    }
}

fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}

/// Whether a number can be a scale: positive and finite.
pub(crate) fn is_scale(scale: f32) -> bool {
    scale > 0.0 && scale.is_finite()
}

/// Whether a scale is a power of two.
pub(crate) fn is_power_of_two(scale: f32) -> bool {
    // Every f32 is a normal number of f64: but for its sign and exponent nothing is left of one.
    is_scale(scale) && f64::from(scale).to_bits() << 12 == 0
}

/// Codes that are looked at together, for which there are vectors.
const TOGETHER: usize = 4096;

/// The place of the first NaN among E4M3 codes.
pub(crate) fn first_nan(codes: &[u8]) -> Option<usize> {
    // All of them, without a way out on the way: so that they are compared in vectors.
    let has_nan =
        |codes: &[u8]| codes.iter().fold(false, |has, code| has | Fp8Format::E4M3.is_nan(*code));
    let chunk = codes.chunks(TOGETHER).position(has_nan)?;
    let first = chunk * TOGETHER;
    codes[first..].iter().position(|code| Fp8Format::E4M3.is_nan(*code)).map(|at| first + at)
}

#[cfg(test)]
mod tests {
    use super::{TOGETHER, first_nan, is_power_of_two};

    #[test]
    fn the_first_nan_is_found_wherever_it_is() {
        let codes = vec![0x7E; 2 * TOGETHER + 77];
        assert_eq!(first_nan(&codes), None);
        for place in [0, 1, TOGETHER - 1, TOGETHER, 2 * TOGETHER + 76] {
            for nan in [0x7F, 0xFF] {
                let mut codes = codes.clone();
                (codes[place], codes[2 * TOGETHER + 76]) = (nan, nan);
                assert_eq!(first_nan(&codes), Some(place));
            }
        }
    }

    #[test]
    fn powers_of_two_are_told_from_other_numbers() {
        let powers = (-149..128).map(|exponent| 2_f64.powi(exponent) as f32);
        assert!(powers.clone().all(is_power_of_two));
        assert!(!powers.clone().any(|power| is_power_of_two(-power)));
        assert!(!powers.skip(1).any(|power| is_power_of_two(power.next_up())));
        for number in [0.0, -0.0, 3.0, 0.3, f32::INFINITY, f32::NAN] {
            assert!(!is_power_of_two(number), "{number}");
        }
    }
}
