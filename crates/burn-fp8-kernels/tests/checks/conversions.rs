//! Codes to numbers, and products times their scales.

use super::values::{FORMATS, SCALES, boundaries, comparable, every_exponent, every_half, spread};
use super::{Client, Held, client, gather, read, read_scalar, read_words, scalar, upload};
use burn_fp8_core::{Overflow, scale};
use burn_fp8_cpu::slice;
use burn_fp8_kernels::{
    Element, Input, KernelError, Layouts, NonFinite, Outputs, Scalar, ScaleRule, amax, dequantize,
    quantize, quantize_matrix, rescale,
};
use cubecl::ir::AddressType;
use cubecl::server::Handle;

#[track_caller]
fn assert_same(client: &Client, found: &Handle, expected: &[f32], what: &str) {
    let found: Vec<_> = read_words(client, found).into_iter().map(f32::from_bits).collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            comparable(*found) == comparable(*expected),
            "{what}: {i}: {found:e}, not {expected:e}"
        );
    }
}

pub fn every_code_is_decoded() {
    let client = client();
    let mut bytes: Vec<u8> = (0..=255).collect();
    for len in [256, 255, 6, 2, 1] {
        bytes.truncate(len);
        let codes = upload(&client, &bytes);
        for format in FORMATS {
            let mut expected = vec![0.0; len];
            slice::decode(&bytes, 1.0, format, &mut expected);
            let values = dequantize(&client, &codes, len, format).expect("valid");
            assert_same(&client, &values, &expected, &format!("{len} {format}"));
        }
    }
}

pub fn ties_and_their_neighbours_with_scales_on_the_device() {
    let client = client();
    for format in FORMATS {
        for factor in SCALES {
            let x = boundaries(format, factor);
            let (held, x) = Held::new(&client, &x, &[x.len()], Element::F32);
            let mut expected = vec![0; x.len()];
            slice::encode(&x, factor, format, Overflow::SaturateFinite, &mut expected);
            let scale = Scalar::Device(scalar(&client, factor));
            let rule = ScaleRule::Given { scale, overflow: Overflow::SaturateFinite };
            let quantized =
                quantize(&client, &held.input(), format, &rule, Outputs::Codes).expect("valid");
            let codes = read(&client, &quantized.codes.expect("asked for"));
            assert!(codes[..x.len()] == expected, "{format} {factor:e}");
        }
    }
}

/// Pairs of scales whose product is a normal number, too small or too large.
const PAIRS: [[f32; 2]; 6] =
    [[2.0, 0.25], [0.37, 1.9], [1e-30, 1e25], [1e30, 1e20], [1e-23, 5e-24], [3e38, 1.2]];

pub fn products_are_rescaled_as_in_the_core() {
    let client = client();
    let mut x = every_exponent();
    x.extend(every_half(Element::F16).into_iter().filter(|x| x.is_finite()));
    x.extend(spread(1003, 20, 5));
    for scales in PAIRS {
        for len in [x.len() / 4 * 4, x.len() / 4 * 4 - 1] {
            let (held, x) = Held::new(&client, &x[..len], &[len], Element::F32);
            let [first, second] = scale::of_product(scales[0], scales[1]);
            let expected: Vec<_> = x.iter().map(|x| x * first * second).collect();
            let [lhs, rhs] = scales;
            let (lhs, rhs) = (Scalar::Device(scalar(&client, lhs)), Scalar::Host(rhs));
            let rescaled = rescale(&client, &held.input(), [&lhs, &rhs]).expect("valid");
            assert_same(&client, &rescaled, &expected, &format!("{scales:?}"));
        }
    }
}

pub fn strided_products_are_rescaled() {
    let client = client();
    let memory = spread(4096, 8, 2);
    let one = Scalar::Host(1.0);
    let views: [(&[usize], &[usize]); 5] = [
        (&[16, 20], &[32, 1]),
        (&[16, 21], &[32, 1]),
        (&[20, 16], &[1, 20]),
        (&[3, 4, 5], &[5, 15, 1]),
        (&[], &[]),
    ];
    for (shape, strides) in views {
        let (mut held, _) = Held::new(&client, &memory, &[memory.len()], Element::F32);
        (held.shape, held.strides) = (shape.into(), strides.into());
        let expected = gather(&memory, shape, strides);
        let rescaled = rescale(&client, &held.input(), [&one, &one]).expect("valid");
        assert_same(&client, &rescaled, &expected, &format!("{shape:?} {strides:?}"));
    }
}

pub fn what_cannot_be_launched_is_an_error() {
    let client = client();
    let (held, _) = Held::new(&client, &[1.0; 12], &[3, 4], Element::F32);
    let input = held.input();
    let check = |input: Input<'_>| {
        let rule =
            ScaleRule::Given { scale: Scalar::Host(1.0), overflow: Overflow::SaturateFinite };
        let (format, one) = (FORMATS[0], Scalar::Host(1.0));
        let errors = [
            amax(&client, &input, NonFinite::Excluded).err(),
            quantize(&client, &input, format, &rule, Outputs::Codes).err(),
            quantize_matrix(&client, &input, format, &rule, Layouts::Both).err(),
            rescale(&client, &input, [&one, &one]).err(),
        ];
        errors.into_iter().flatten().collect::<Vec<_>>()
    };
    let empty = KernelError::Empty { shape: vec![3, 0] };
    assert_eq!(check(Input { shape: &[3, 0], ..input }), vec![empty; 4]);
    let rank = KernelError::Rank { shape: vec![3, 4], strides: vec![1] };
    assert_eq!(check(Input { strides: &[1], ..input }), vec![rank; 4]);
    let errors = check(Input { strides: &[5, 1], ..input });
    let message = "shape [3, 4] with strides [5, 1] of f32 needs 56 bytes, the buffer has 48";
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [message; 4]);
    let offset = held.handle.clone().offset_start(2);
    let errors = check(Input { handle: &offset, shape: &[2], strides: &[1], ..input });
    assert_eq!(errors, vec![KernelError::Misaligned { offset: 2 }; 4]);
    let absurd = [usize::MAX, usize::MAX];
    let errors = check(Input { shape: &absurd, strides: &[0, 0], ..input });
    let too_large = KernelError::TooLarge { elements: u64::MAX, needed: AddressType::U64 };
    assert_eq!(errors, vec![too_large; 4]);
    let half = Input { element: Element::F16, ..input };
    let one = Scalar::Host(1.0);
    let error = rescale(&client, &half, [&one, &one]).err();
    assert_eq!(error, Some(KernelError::Element { element: Element::F16 }));
    let short = Scalar::Device(client.empty(2));
    let rule = ScaleRule::Given { scale: short, overflow: Overflow::Saturate };
    let error = quantize(&client, &input, FORMATS[0], &rule, Outputs::Codes).err();
    assert_eq!(error, Some(KernelError::Scalar { held: 2 }));
    let codes = client.empty(8);
    let error = dequantize(&client, &codes, 9, FORMATS[0]).err();
    assert_eq!(error, Some(KernelError::Codes { len: 9, held: 8 }));
}

/// More elements than 32-bit indices reach are an error on a device without 64-bit ones; elsewhere the last of them are right.
pub fn more_elements_than_32_bits_reach() {
    let client = client();
    let (period, rows) = (1009, (1 << 31) / 1009 + 1);
    let (mut held, x) = Held::new(&client, &spread(period, 12, 1), &[period], Element::F32);
    (held.shape, held.strides) = (vec![rows, period], vec![0, 1]);
    let elements = rows * period;
    let scale = Scalar::Host(0.37);
    let rule = ScaleRule::Given { scale: scale.clone(), overflow: Overflow::SaturateFinite };
    let codes = quantize(&client, &held.input(), FORMATS[0], &rule, Outputs::Codes);
    if client.properties().supports_address(AddressType::U64) {
        let mut expected = vec![0; period];
        slice::encode(&x, 0.37, FORMATS[0], Overflow::SaturateFinite, &mut expected);
        let codes = read(&client, &codes.expect("valid").codes.expect("asked for"));
        assert!(codes[..elements].chunks_exact(period).all(|row| row == expected));
        return;
    }
    let too_large = KernelError::TooLarge { elements: elements as u64, needed: AddressType::U64 };
    let matrix = quantize_matrix(&client, &held.input(), FORMATS[0], &rule, Layouts::Both);
    let rescaled = rescale(&client, &held.input(), [&scale, &scale]);
    let errors = [codes.err(), matrix.err(), rescaled.err()];
    // A matrix is padded first.
    let padded = (rows.next_multiple_of(16) * period.next_multiple_of(16)) as u64;
    let padded = KernelError::TooLarge { elements: padded, needed: AddressType::U64 };
    assert_eq!(errors, [Some(too_large.clone()), Some(padded), Some(too_large)]);
    // Its amax is that of the row that is repeated.
    let measured = amax(&client, &held.input(), NonFinite::Excluded).expect("valid");
    assert_eq!(read_scalar(&client, &measured), slice::amax(&x).value);
}
