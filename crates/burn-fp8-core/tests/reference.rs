//! Rounding is to the nearest number, ties to even, of the true quotient: against a search in f64.

mod common;

use burn_fp8_core::{Fp8Format, Overflow, slice};
use common::{FORMATS, OVERFLOWS, SCALES, comparable, nearest, special_values};
use proptest::prelude::*;

/// The f32 nearest to `x / scale`. A quotient of two f32 that is rounded to f64 first is rounded to f32 as if it had not been.
/// Only an infinite `x` has an infinite quotient where the reference for `SaturateFinite` must tell the two apart.
fn quotient(x: f32, scale: f32, overflow: Overflow) -> f64 {
    let quotient = (f64::from(x) / f64::from(scale)) as f32;
    f64::from(match overflow {
        Overflow::SaturateFinite if x.is_finite() => quotient.clamp(f32::MIN, f32::MAX),
        _ => quotient,
    })
}

fn check(x: &[f32], scale: f32, format: Fp8Format, overflow: Overflow) {
    let mut codes = vec![0; x.len()];
    let mut values = vec![0.0; x.len()];
    let mut dequantized = vec![0.0; x.len()];
    let mut in_place = x.to_vec();
    slice::encode(x, scale, format, overflow, &mut codes);
    slice::round(x, scale, format, overflow, &mut values);
    slice::quantize_dequantize(x, scale, format, overflow, &mut dequantized);
    slice::quantize_dequantize_in_place(&mut in_place, scale, format, overflow);
    let magnitudes = common::magnitudes(format);
    for at in 0..x.len() {
        let what = format!("{:e} / {scale:e}, {format}, {overflow:?}", x[at]);
        let code = nearest(quotient(x[at], scale, overflow), format, overflow);
        assert_eq!(codes[at], code, "{what}");
        let magnitude = match (usize::from(code & 0x7F), format) {
            (0x7C, Fp8Format::E5M2) => f64::INFINITY,
            (low, _) if low + 1 >= magnitudes.len() => f64::NAN,
            (low, _) => magnitudes[low],
        };
        let value = if code >= 0x80 { -magnitude } else { magnitude };
        assert_eq!(comparable(values[at]), comparable(value as f32), "{what}");
        let product = (value * f64::from(scale)) as f32;
        assert_eq!(comparable(dequantized[at]), comparable(product), "{what}");
        assert_eq!(comparable(in_place[at]), comparable(product), "{what}");
    }
}

#[test]
fn special_values_round_to_nearest_at_every_scale() {
    for format in FORMATS {
        for overflow in OVERFLOWS {
            for scale in SCALES {
                check(&special_values(), scale, format, overflow);
                let scaled: Vec<f32> = special_values().iter().map(|x| x * scale).collect();
                check(&scaled, scale, format, overflow);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_value_over_any_scale_rounds_to_nearest(
        bits in prop::collection::vec(any::<u32>(), 1..20),
        scale in f32::MIN_POSITIVE.to_bits()..=f32::MAX.to_bits(),
        format in prop::sample::select(&FORMATS[..]),
        overflow in prop::sample::select(&OVERFLOWS[..]),
    ) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        check(&x, f32::from_bits(scale), format, overflow);
    }

    #[test]
    fn values_within_range_round_to_nearest(
        x in prop::collection::vec(-2.0f32..2.0, 1..20),
        exponent in -40i32..40,
        mantissa in 1.0f32..2.0,
        format in prop::sample::select(&FORMATS[..]),
        overflow in prop::sample::select(&OVERFLOWS[..]),
    ) {
        let scale = mantissa * (exponent as f32).exp2();
        let x: Vec<f32> = x.into_iter().map(|x| x * scale * format.max()).collect();
        check(&x, scale, format, overflow);
        let small: Vec<f32> = x.iter().map(|x| x / format.max() * format.min_positive_normal()).collect();
        check(&small, scale, format, overflow);
    }
}
