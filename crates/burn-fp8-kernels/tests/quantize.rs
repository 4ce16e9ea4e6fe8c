//! Codes and values are those of the core, bit for bit.
#![cfg(feature = "wgpu")]

mod common;

use burn_fp8_core::{Fp8Format, Overflow, slice};
use burn_fp8_kernels::{Element, Outputs, Scalar, ScaleRule, quantize};
use common::values::{FORMATS, OVERFLOWS, SCALES, comparable};
use common::{Client, Held, client, read, read_words, values};

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
    slice::parallel::encode_and_round(
        &x,
        scale,
        format,
        overflow,
        &mut expected,
        &mut expected_values,
    );
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

#[test]
fn every_exponent_of_f32() {
    let client = client();
    let x = values::every_exponent();
    for format in FORMATS {
        for overflow in OVERFLOWS {
            for scale in SCALES {
                check(&client, &x, Element::F32, scale, format, overflow);
            }
        }
    }
}

#[test]
fn every_f16_and_bf16() {
    let client = client();
    for element in [Element::F16, Element::Bf16] {
        let x = values::every_half(element);
        for format in FORMATS {
            for overflow in OVERFLOWS {
                for scale in SCALES {
                    check(&client, &x, element, scale, format, overflow);
                }
            }
        }
    }
}
