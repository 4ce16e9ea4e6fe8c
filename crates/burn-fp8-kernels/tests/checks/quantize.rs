//! Codes and values are those of the core, bit for bit.

use super::values::{FORMATS, OVERFLOWS, SCALES, comparable};
use super::{Client, Held, client, read, read_words, values};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice;
use burn_fp8_kernels::{Element, Outputs, Scalar, ScaleRule, quantize};

fn check(
    client: &Client,
    x: &[f32],
    element: Element,
    scale: f32,
    format: Fp8Format,
    overflow: Overflow,
) {
    let (held, x) = Held::new(client, x, &[x.len()], element);
    let rule = ScaleRule::Given { scale: Scalar::Host(scale), overflow };
    let quantized =
        quantize(client, &held.input(), format, &rule, Outputs::CodesAndValues).expect("valid");
    let codes = read(client, &quantized.codes.expect("asked for"));
    let values = read_words(client, &quantized.values.expect("asked for"));
    let (mut expected, mut expected_values) = (vec![0; x.len()], vec![0.0; x.len()]);
    slice::encode_and_round(&x, scale, format, overflow, &mut expected, &mut expected_values);
    for i in 0..x.len() {
        assert!(
            codes[i] == expected[i]
                && comparable(f32::from_bits(values[i])) == comparable(expected_values[i]),
            "{format} {overflow:?} {element} {:?} ({:#x}) / {scale:?}: code {:#x}, not {:#x}; value {:?}, not {:?}",
            x[i],
            x[i].to_bits(),
            codes[i],
            expected[i],
            f32::from_bits(values[i]),
            expected_values[i]
        );
    }
    assert!(codes[x.len()..].iter().all(|code| *code == 0));
}

/// Each format, overflow and scale.
fn check_all(x: &[f32], element: Element) {
    let client = client();
    for format in FORMATS {
        for overflow in OVERFLOWS {
            for scale in SCALES {
                check(&client, x, element, scale, format, overflow);
            }
        }
    }
}

pub fn every_exponent_of_f32() {
    check_all(&values::every_exponent(), Element::F32);
}

pub fn every_f16_and_bf16() {
    for element in [Element::F16, Element::Bf16] {
        check_all(&values::every_half(element), element);
    }
}

pub fn random_bits_of_f32() {
    let client = client();
    let x = values::random_bits(1 << 22, 5);
    for (format, overflow, scale) in [
        (Fp8Format::E4M3, Overflow::SaturateFinite, 1.0),
        (Fp8Format::E5M2, Overflow::SaturateFinite, 1.0),
        (Fp8Format::E4M3, Overflow::Saturate, 3.7e-11),
        (Fp8Format::E5M2, Overflow::NonSaturating, 2.9e17),
    ] {
        check(&client, &x, Element::F32, scale, format, overflow);
    }
}

/// Every mantissa of f32, with an exponent whose numbers round to subnormal codes, and with one whose numbers round to normal ones.
pub fn every_mantissa_of_f32() {
    let client = client();
    for (format, exponents) in [(Fp8Format::E4M3, [118, 130]), (Fp8Format::E5M2, [111, 142])] {
        for exponent in exponents {
            let bits = (0..1u32 << 23).map(|mantissa| (exponent << 23) | mantissa);
            let x: Vec<f32> = bits.map(f32::from_bits).collect();
            check(&client, &x, Element::F32, 1.0, format, Overflow::SaturateFinite);
        }
    }
}
