//! Limits, names and printed forms of the formats.

mod common;

use burn_fp8_core::{Fp8Format, Overflow};
use common::{FORMATS, magnitudes};

#[test]
fn limits_are_those_of_the_specification() {
    for format in FORMATS {
        let numbers = magnitudes(format);
        let normal = 1 << format.mantissa_bits();
        assert_eq!(f64::from(format.max()), numbers[numbers.len() - 2]);
        assert_eq!(f64::from(format.min_positive_subnormal()), numbers[1]);
        assert_eq!(f64::from(format.min_positive_normal()), numbers[normal]);
        let one = numbers.iter().position(|x| *x == 1.0).expect("1 is a number of both formats");
        assert_eq!(f64::from(format.epsilon()), numbers[one + 1] - 1.0);
        assert_eq!(1 + format.exponent_bits() + format.mantissa_bits(), 8);
    }
    // ml_dtypes 0.6.0, finfo(float8_e4m3fn) and finfo(float8_e5m2): max, smallest_normal, smallest_subnormal, eps.
    let limits = FORMATS
        .map(|f| [f.max(), f.min_positive_normal(), f.min_positive_subnormal(), f.epsilon()]);
    assert_eq!(limits[0], [448.0, 0.015625, 0.001953125, 0.125]);
    assert_eq!(limits[1], [57344.0, 6.1035156e-5, 1.5258789e-5, 0.25]);
}

#[test]
fn every_number_survives_a_round_trip() {
    for format in FORMATS {
        for overflow in common::OVERFLOWS {
            for code in (0..=255).filter(|c| !format.is_nan(*c) && !format.is_infinite(*c)) {
                assert_eq!(format.encode(format.decode(code), overflow), code);
            }
        }
    }
}

#[test]
fn infinities_follow_the_overflow_mode() {
    use Overflow::{NonSaturating, Saturate, SaturateFinite};
    let codes = |format: Fp8Format, x| {
        [Saturate, SaturateFinite, NonSaturating].map(|overflow| format.encode(x, overflow))
    };
    assert_eq!(codes(Fp8Format::E4M3, f32::INFINITY), [0x7E, 0x7F, 0x7F]);
    assert_eq!(codes(Fp8Format::E4M3, f32::NEG_INFINITY), [0xFE, 0xFF, 0xFF]);
    assert_eq!(codes(Fp8Format::E4M3, 1e10), [0x7E, 0x7E, 0x7F]);
    assert_eq!(codes(Fp8Format::E5M2, f32::INFINITY), [0x7B, 0x7C, 0x7C]);
    assert_eq!(codes(Fp8Format::E5M2, f32::NEG_INFINITY), [0xFB, 0xFC, 0xFC]);
    assert_eq!(codes(Fp8Format::E5M2, -1e10), [0xFB, 0xFB, 0xFC]);
}

#[test]
fn names_are_read_and_written() {
    assert_eq!(FORMATS.map(|f| f.to_string()), ["E4M3", "E5M2"]);
    for name in ["e4m3", "E4M3", "e4m3fn", "E4M3FN", "float8_e4m3fn", "f8E4M3FN"] {
        assert_eq!(name.parse(), Ok(Fp8Format::E4M3), "{name}");
    }
    for name in ["e5m2", "E5M2", "float8_e5m2", "f8E5M2"] {
        assert_eq!(name.parse(), Ok(Fp8Format::E5M2), "{name}");
    }
    for name in ["", "e4m3fnuz", "float8_e5m2fnuz", "fp8", "e3m4"] {
        let error = name.parse::<Fp8Format>().expect_err(name).to_string();
        assert!(error.starts_with(&format!("\"{name}\" is not a known FP8 format")), "{error}");
    }
}

#[test]
fn formats_are_lowercase_in_files() {
    assert_eq!(serde_json::to_string(&FORMATS).expect("it is written"), r#"["e4m3","e5m2"]"#);
    let read: [Fp8Format; 2] = serde_json::from_str(r#"["e5m2","e4m3"]"#).expect("it is read");
    assert_eq!(read, [Fp8Format::E5M2, Fp8Format::E4M3]);
}

#[test]
fn info_prints_the_limits() {
    let text = Fp8Format::E5M2.info().to_string();
    for line in [
        "Machine parameters for E5M2",
        "nmant =  2      eps = 0.25",
        "nexp =   5      bias = 15",
        "minexp = -14    smallest_normal = 0.000061035156",
        "maxexp = 16     max = 57344",
        "smallest_subnormal = 0.000015258789   min = -max",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} is missing in\n{text}");
    }
    assert!(Fp8Format::E4M3.info().to_string().contains("maxexp = 9      max = 448"));
}
