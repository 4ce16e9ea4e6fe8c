//! Slices of any length and alignment, on any number of threads, give what their elements give one by one.

mod common;

use burn_fp8_core::slice::{self, Amax, Source, parallel};
use burn_fp8_core::{Fp8Format, Overflow};
use common::{FORMATS, OVERFLOWS, SCALES, comparable, special_values, spread};
use half::{bf16, f16};

const LENGTHS: [usize; 13] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 63, 64, 65, 257];

/// The code by the scalar conversion of the quotient.
fn scalar(x: f32, scale: f32, format: Fp8Format, overflow: Overflow) -> u8 {
    let quotient = x / scale;
    // The scalar conversion sees quotients only: a finite one must not have become infinite.
    let finite = if x.is_finite() { quotient.clamp(f32::MIN, f32::MAX) } else { quotient };
    format.encode(if overflow == Overflow::SaturateFinite { finite } else { quotient }, overflow)
}

fn check<S: Source>(x: &[S], scale: f32, format: Fp8Format, overflow: Overflow) {
    let len = x.len();
    let (mut codes, mut values) = (vec![0xAA; len], vec![1e9; len]);
    let (mut both_codes, mut both_values) = (vec![0xAA; len], vec![1e9; len]);
    slice::encode(x, scale, format, overflow, &mut codes);
    slice::round(x, scale, format, overflow, &mut values);
    slice::encode_and_round(x, scale, format, overflow, &mut both_codes, &mut both_values);
    let mut decoded = vec![1e9; len];
    slice::decode(&codes, scale, format, &mut decoded);
    for at in 0..len {
        let what = format!("{:e} / {scale:e}, {format}, {overflow:?}, {len}", x[at].to_f32());
        let code = scalar(x[at].to_f32(), scale, format, overflow);
        assert_eq!([codes[at], both_codes[at]], [code; 2], "{what}");
        let value = comparable(format.decode(code));
        assert_eq!(comparable(values[at]), value, "{what}");
        assert_eq!(comparable(both_values[at]), value, "{what}");
        assert_eq!(comparable(decoded[at]), comparable(format.decode(code) * scale), "{what}");
        if !values[at].is_nan() {
            assert_eq!(values[at].is_sign_negative(), x[at].to_f32().is_sign_negative(), "{what}");
        }
    }
}

#[test]
fn every_length_and_alignment_converts_like_its_elements() {
    let x = spread(512, 20);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    for format in FORMATS {
        for overflow in OVERFLOWS {
            for len in LENGTHS {
                for offset in [0, 1, 3, 5, 15] {
                    check(&x[offset..offset + len], 0.37, format, overflow);
                    check(&halves[offset..offset + len], 0.37, format, overflow);
                    check(&brains[offset..offset + len], 0.37, format, overflow);
                }
            }
        }
    }
}

#[test]
fn special_values_convert_like_their_elements_at_every_scale() {
    let x = special_values();
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    for format in FORMATS {
        for overflow in OVERFLOWS {
            for scale in SCALES {
                check(&x, scale, format, overflow);
                check(&halves, scale, format, overflow);
                check(&brains, scale, format, overflow);
            }
        }
    }
}

#[test]
fn every_f16_and_bf16_is_widened_as_half_does() {
    for bits in 0..=u16::MAX {
        let (brain, half) = (bf16::from_bits(bits), f16::from_bits(bits));
        assert_eq!(comparable(Source::to_f32(brain)), comparable(brain.to_f32()), "{bits:#06x}");
        assert_eq!(comparable(Source::to_f32(half)), comparable(half.to_f32()), "{bits:#06x}");
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("three threads");
    for len in [0, 1, 1000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 * (1 << 16) + 17] {
        let mut x = spread(len, 12);
        for (x, special) in x.iter_mut().step_by(997).zip(special_values()) {
            *x = special;
        }
        for (format, overflow) in FORMATS.into_iter().zip(OVERFLOWS) {
            let scale = 0.013;
            macro_rules! results {
                ($module:ident) => {{
                    let (mut codes, mut both) = (vec![0; len], vec![0; len]);
                    let mut floats = [(); 6].map(|()| x.clone());
                    let [values, of_both, decoded, qdq, in_place, scaled] = &mut floats;
                    $module::encode(&x, scale, format, overflow, &mut codes);
                    $module::round(&x, scale, format, overflow, values);
                    $module::encode_and_round(&x, scale, format, overflow, &mut both, of_both);
                    $module::decode(&codes, scale, format, decoded);
                    $module::quantize_dequantize(&x, scale, format, overflow, qdq);
                    $module::quantize_dequantize_in_place(in_place, scale, format, overflow);
                    $module::scale_in_place(scaled, scale);
                    let bits = floats
                        .map(|floats| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>());
                    (codes, both, bits, $module::amax(&x))
                }};
            }
            let alone = results!(slice);
            assert!(alone == pool.install(|| results!(parallel)), "{len} elements, {format}");
        }
    }
}

/// One read gives what two give: blocks, tasks and threads, with special values in each.
#[test]
fn codes_and_amax_come_of_one_read() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("three threads");
    for len in [0, 1, 15, 16, 33, 4095, 4097, 70_001, 3 * (1 << 16) + 17] {
        for with_special in [false, true] {
            let mut x = spread(len, 12);
            if with_special {
                for (x, special) in x.iter_mut().step_by(997).zip(special_values()) {
                    *x = special;
                }
            }
            check_one_read(&x, &pool);
            check_one_read(&x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>(), &pool);
            check_one_read(&x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>(), &pool);
        }
    }
}

fn check_one_read<S: Source>(x: &[S], pool: &rayon::ThreadPool) {
    let len = x.len();
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let finite = wide.iter().filter(|x| x.is_finite());
    let amax = Amax {
        value: finite.fold(0.0, |amax, x| x.abs().max(amax)),
        non_finite: wide.iter().any(|x| !x.is_finite()),
        nan: wide.iter().any(|x| x.is_nan()),
    };
    for (format, overflow) in FORMATS.into_iter().flat_map(|f| OVERFLOWS.map(|o| (f, o))) {
        let scale = 0.013;
        let codes: Vec<u8> = wide.iter().map(|x| scalar(*x, scale, format, overflow)).collect();
        let (mut alone, mut pooled) = (vec![1; len], vec![2; len]);
        let of_one = slice::encode_with_amax(x, scale, format, overflow, &mut alone);
        let of_pool =
            pool.install(|| parallel::encode_with_amax(x, scale, format, overflow, &mut pooled));
        assert_eq!([of_one, of_pool, slice::amax(x)], [amax; 3], "{len} elements, {format}");
        assert!(alone == codes && pooled == codes, "{len} elements, {format}");
    }
}

#[test]
fn scaling_multiplies_every_element() {
    let x = spread(101, 30);
    let mut y = x.clone();
    slice::scale_in_place(&mut y, 0.3);
    let expected: Vec<f32> = x.iter().map(|x| x * 0.3).collect();
    assert_eq!(y, expected);
    for scale in [slice::scale, parallel::scale] {
        let mut y = vec![0.0; x.len()];
        scale(&x, 0.3, &mut y);
        assert_eq!(y, expected);
    }
}

#[test]
fn amax_is_taken_over_finite_elements() {
    let check = |x: &[f32], value, non_finite| {
        let nan = x.iter().any(|x| x.is_nan());
        assert_eq!(slice::amax(x), Amax { value, non_finite, nan }, "{x:?}");
        assert_eq!(parallel::amax(x), Amax { value, non_finite, nan }, "{x:?}");
        // As numpy's max(abs(x)): NaN wins, then infinity.
        let all = slice::amax(x).with_non_finite();
        assert_eq!(all.is_nan(), nan, "{x:?}");
        assert_eq!(all.is_infinite(), non_finite && !nan, "{x:?}");
        assert!(non_finite || all == value, "{x:?}");
    };
    check(&[], 0.0, false);
    check(&[-0.0, 0.0], 0.0, false);
    check(&[1.0, -3.0, 2.0], 3.0, false);
    check(&[1.0, f32::NAN, -2.0], 2.0, true);
    check(&[f32::NEG_INFINITY, 5.0], 5.0, true);
    check(&[f32::INFINITY, f32::NAN, -f32::NAN], 0.0, true);
    check(&[-1e-45, 1e-40], 1e-40, false);
    check(&[f32::MIN, 1.0], f32::MAX, false);
}

#[test]
fn amax_finds_its_element_at_every_place() {
    for len in LENGTHS {
        for at in 0..len {
            let mut x = spread(len, 3);
            x[at] = -77.0;
            assert_eq!(slice::amax(&x), Amax { value: 77.0, ..Amax::default() });
            x[at] = f32::NAN;
            assert!(slice::amax(&x).non_finite);
            assert!(slice::amax(&x).value <= 8.0);
        }
    }
}

#[test]
fn amax_of_long_slices_has_both_parts() {
    let mut x = spread(10_001, 3);
    for (at, non_finite) in [(0, f32::NAN), (5000, f32::INFINITY), (10_000, f32::NEG_INFINITY)] {
        x[9_999] = -77.0;
        x[at] = non_finite;
        let nan = non_finite.is_nan();
        assert_eq!(slice::amax(&x), Amax { value: 77.0, non_finite: true, nan });
        x[at] = 0.5;
    }
    x[4_500] = f32::NAN;
    x[4_501] = 99.0;
    assert_eq!(slice::amax(&x), Amax { value: 99.0, non_finite: true, nan: true });
}

#[test]
fn amax_of_halves_is_that_of_their_values() {
    let halves = [1.5, -65504.0, f32::INFINITY, 6e-8].map(f16::from_f32);
    assert_eq!(slice::amax(&halves), Amax { value: 65504.0, non_finite: true, nan: false });
    assert_eq!(slice::amax(&halves[3..]), Amax { value: 2f32.powi(-24), ..Amax::default() });
    let brains = [1.5, -3e38, 1e-40].map(bf16::from_f32);
    assert_eq!(slice::amax(&brains).value, -brains[1].to_f32());
}

#[test]
#[should_panic(expected = "x has 3 elements and codes has 2")]
fn lengths_that_differ_are_named() {
    slice::encode(&[1.0, 2.0, 3.0], 1.0, Fp8Format::E4M3, Overflow::Saturate, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "codes has 1 elements and x has 4")]
fn lengths_that_differ_are_named_in_parallel() {
    parallel::decode(&[1], 1.0, Fp8Format::E4M3, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "x has 2 elements and values has 1")]
fn both_outputs_must_have_the_length_of_the_input() {
    let (mut codes, mut values) = ([0; 2], [0.0; 1]);
    let x = [1.0f32, 2.0];
    slice::encode_and_round(&x, 1.0, Fp8Format::E4M3, Overflow::Saturate, &mut codes, &mut values);
}
