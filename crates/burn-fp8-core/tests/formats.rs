//! The formats: limits, names, printed forms, codes of single numbers; and `float8`'s types as codes.

use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_test_support::fp8::{decode, encode, magnitudes};
use burn_fp8_test_support::hard::special;
use burn_fp8_test_support::{FORMATS, Golden, OVERFLOWS, comparable};
use half::{bf16, f16};

#[test]
fn limits_are_those_of_the_specification() {
    for format in FORMATS {
        let numbers = magnitudes(format);
        let normal = 1 << format.mantissa_bits();
        assert_eq!(f64::from(format.max()), numbers[numbers.len() - 1]);
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

/// Codes to numbers, and numbers, ties, their neighbours and what is no number to codes, by definition.
#[test]
fn codes_are_those_of_the_specification() {
    for format in FORMATS {
        for code in 0..=255 {
            let number = decode(code, format);
            assert_eq!(comparable(format.decode(code)), comparable(number as f32), "{code:#x}");
            assert_eq!(format.is_nan(code), number.is_nan(), "{code:#x}");
            assert_eq!(format.is_infinite(code), number.is_infinite(), "{code:#x}");
        }
        for (overflow, x) in
            OVERFLOWS.into_iter().flat_map(|o| special().into_iter().map(move |x| (o, x)))
        {
            let code = encode(f64::from(x), format, overflow);
            assert_eq!(format.encode(x, overflow), code, "{x:e} {format} {overflow:?}");
        }
    }
}

/// `golden/conversions.json` says what each tensor holds.
#[test]
fn codes_of_every_f16_and_bf16_are_those_of_ml_dtypes() {
    let golden = Golden::read(env!("CARGO_MANIFEST_DIR"), "conversions");
    for (format, name) in FORMATS.into_iter().zip(["e4m3fn", "e5m2"]) {
        let f32s = golden.u32s(&format!("decode/{name}/f32_bits"));
        let bf16s = golden.u16s(&format!("decode/{name}/bf16_bits"));
        let f16s = golden.u16s(&format!("decode/{name}/f16_bits"));
        for code in 0..=255u8 {
            let (x, at) = (format.decode(code), usize::from(code));
            assert_eq!(x.to_bits(), f32s[at], "{format} {code:#x}");
            assert_eq!(bf16::from_f32(x).to_bits(), bf16s[at], "{format} {code:#x}");
            assert_eq!(f16::from_f32(x).to_bits(), f16s[at], "{format} {code:#x}");
        }
        for (mode, overflow) in [("sat", Overflow::Saturate), ("nonsat", Overflow::NonSaturating)] {
            let codes = |source: &str| golden.u8s(&format!("{source}/{name}/{mode}"));
            let of_f32s: Vec<u8> =
                golden.f32s("f32/bits").iter().map(|x| format.encode(*x, overflow)).collect();
            assert!(of_f32s == codes("f32"), "{format} {mode}");
            let (bf16s, f16s) = (codes("bf16"), codes("f16"));
            for bits in 0..=u16::MAX {
                let at = usize::from(bits);
                let code = format.encode_bf16(bf16::from_bits(bits), overflow);
                assert_eq!(code, bf16s[at], "{format} {mode} {bits:#x}");
                let code = format.encode_f16(f16::from_bits(bits), overflow);
                assert_eq!(code, f16s[at], "{format} {mode} {bits:#x}");
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

/// Numbers of `float8` and codes are the same bytes, in the same place.
#[cfg(feature = "float8")]
mod float8_types {
    use burn_fp8_core::float8::{
        Float8, codes_of, codes_of_mut, from_codes, into_codes, numbers_of, numbers_of_mut,
    };
    use float8::{F8E4M3, F8E5M2};

    use super::*;

    /// Of every code, there and back.
    fn check<T: Float8 + PartialEq + std::fmt::Debug>(
        format: Fp8Format,
        from_bits: fn(u8) -> T,
        to_bits: fn(&T) -> u8,
        to_f32: fn(&T) -> f32,
    ) {
        assert_eq!(T::FORMAT, format);
        let codes: Vec<u8> = (0..=255).collect();
        let mut numbers: Vec<T> = codes.iter().map(|code| from_bits(*code)).collect();
        let bits = |numbers: &[T]| numbers.iter().map(to_bits).collect::<Vec<_>>();
        assert_eq!(codes_of(&numbers), codes);
        assert_eq!(codes_of(&numbers).as_ptr(), numbers.as_ptr().cast());
        assert_eq!(bits(numbers_of(&codes)), codes);
        assert_eq!(numbers_of::<T>(&codes).as_ptr(), codes.as_ptr().cast());

        for (code, number) in codes.iter().zip(&numbers) {
            assert_eq!(comparable(format.decode(*code)), comparable(to_f32(number)), "{code:#x}");
        }
        let place = numbers.as_ptr();
        codes_of_mut(&mut numbers)[3] = 0x21;
        assert_eq!(to_bits(&numbers[3]), 0x21);
        codes_of_mut(&mut numbers)[3] = 3;

        let codes = into_codes(numbers);
        assert_eq!(codes.as_ptr(), place.cast());
        let mut codes_again = codes.clone();
        numbers_of_mut(&mut codes_again)[0] = from_bits(0x12);
        assert_eq!((codes_again[0], &codes_again[1..]), (0x12, &codes[1..]));
        let numbers: Vec<T> = from_codes(codes);
        assert_eq!(numbers.as_ptr(), place);
    }

    #[test]
    fn numbers_and_codes_are_the_same_bytes() {
        check(Fp8Format::E4M3, F8E4M3::from_bits, F8E4M3::to_bits, F8E4M3::to_f32);
        check(Fp8Format::E5M2, F8E5M2::from_bits, F8E5M2::to_bits, F8E5M2::to_f32);
    }
}
