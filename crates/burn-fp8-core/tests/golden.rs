//! Codes are those of ml_dtypes 0.6.0 (`golden/conversions.json` says what each tensor holds).

mod common;

use burn_fp8_core::{Fp8Format, Overflow, slice};
use common::{FORMATS, Golden, Tensors, name};
use half::{bf16, f16};

const MODES: [(&str, Overflow); 2] =
    [("sat", Overflow::Saturate), ("nonsat", Overflow::NonSaturating)];

#[test]
fn every_code_decodes_as_in_ml_dtypes() {
    let file = Golden::read("conversions");
    let golden = file.tensors();
    for format in FORMATS {
        let expected = golden.u32s(&format!("decode/{}/f32_bits", name(format)));
        let codes: Vec<u8> = (0..=255).collect();
        let mut values = vec![0.0; 256];
        slice::decode(&codes, 1.0, format, &mut values);
        for code in codes {
            let at = usize::from(code);
            assert_eq!(format.decode(code).to_bits(), expected[at], "{format} {code:#04x}");
            assert_eq!(values[at].to_bits(), expected[at], "{format} {code:#04x} in a slice");
            let value = f32::from_bits(expected[at]);
            assert_eq!(format.is_nan(code), value.is_nan(), "{format} {code:#04x}");
            assert_eq!(format.is_infinite(code), value.is_infinite(), "{format} {code:#04x}");
        }
    }
}

#[test]
fn decoded_codes_fit_bf16_and_f16() {
    let file = Golden::read("conversions");
    let golden = file.tensors();
    for format in FORMATS {
        let bf16s = golden.u16s(&format!("decode/{}/bf16_bits", name(format)));
        let f16s = golden.u16s(&format!("decode/{}/f16_bits", name(format)));
        for code in 0..=255u8 {
            let value = format.decode(code);
            assert_eq!(bf16::from_f32(value).to_bits(), bf16s[usize::from(code)]);
            assert_eq!(f16::from_f32(value).to_bits(), f16s[usize::from(code)]);
        }
    }
}

/// Checks scalar and slice encoding of all `x` against the codes named `source`.
fn check_codes<S: slice::Source>(
    golden: &Tensors<'_>,
    source: &str,
    x: &[S],
    scalar: impl Fn(Fp8Format, S, Overflow) -> u8,
) {
    for format in FORMATS {
        for (mode, overflow) in MODES {
            let expected = golden.u8s(&format!("{source}/{}/{mode}", name(format)));
            let mut codes = vec![0; x.len()];
            let mut both = (vec![0; x.len()], vec![0.0; x.len()]);
            slice::encode(x, 1.0, format, overflow, &mut codes);
            slice::encode_and_round(x, 1.0, format, overflow, &mut both.0, &mut both.1);
            assert_eq!(expected.len(), x.len());
            for (at, &code) in expected.iter().enumerate() {
                let what = format!("{source} {format} {mode} of {:e} at {at}", x[at].to_f32());
                assert_eq!(scalar(format, x[at], overflow), code, "{what}");
                assert_eq!(codes[at], code, "{what} in a slice");
                assert_eq!(both.0[at], code, "{what} with values");
            }
        }
    }
}

#[test]
fn f32_codes_are_those_of_ml_dtypes() {
    let file = Golden::read("conversions");
    let golden = file.tensors();
    let x: Vec<f32> = golden.f32s("f32/bits");
    check_codes(&golden, "f32", &x, Fp8Format::encode);
}

#[test]
fn codes_of_every_bf16_are_those_of_ml_dtypes() {
    let file = Golden::read("conversions");
    let golden = file.tensors();
    let x: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    check_codes(&golden, "bf16", &x, Fp8Format::encode_bf16);
}

#[test]
fn codes_of_every_f16_are_those_of_ml_dtypes() {
    let file = Golden::read("conversions");
    let golden = file.tensors();
    let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    check_codes(&golden, "f16", &x, Fp8Format::encode_f16);
}
