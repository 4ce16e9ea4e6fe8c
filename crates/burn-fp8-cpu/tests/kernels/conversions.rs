//! Slices of any length and alignment, on any number of threads, with any vector instructions: codes and numbers by definition, and those of
//! ml_dtypes 0.6.0 (`golden/conversions.json` says what each tensor holds) and of `float8` 0.7.
//!
//! `float8` differs in NaNs only: its E5M2 keeps payload bits, ml_dtypes and this crate do not. And it has one treatment of infinities, to
//! saturate.

use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice::{self, Amax, Source};
use burn_fp8_test_support::fp8;
use burn_fp8_test_support::hard::{SCALES, special};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;
use rayon::prelude::*;

use crate::common::{
    FORMATS, Golden, OVERFLOWS, Random, comparable, golden, on_all_instructions, pool,
};

const LENGTHS: [usize; 13] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 63, 64, 65, 257];

fn spread(len: usize, exponent: i32) -> Vec<f32> {
    Random(1).magnitudes(exponent, len)
}

/// The code of `x / scale` by definition: the quotient is f32's, and a finite `x` has a finite one for `SaturateFinite`. A quotient of two f32
/// that is rounded to f64 first is rounded to f32 as if it had not been.
fn code(x: f32, scale: f32, format: Fp8Format, overflow: Overflow) -> u8 {
    let quotient = (f64::from(x) / f64::from(scale)) as f32;
    let quotient = match overflow {
        Overflow::SaturateFinite if x.is_finite() => quotient.clamp(f32::MIN, f32::MAX),
        _ => quotient,
    };
    fp8::encode(quotient.into(), format, overflow)
}

fn check<S: Source>(x: &[S], scale: f32, format: Fp8Format, overflow: Overflow) {
    let len = x.len();
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let (mut codes, mut both_codes) = (vec![0xAA; len], vec![0xAA; len]);
    let mut floats = [(); 5].map(|()| vec![1e9; len]);
    let [values, both_values, decoded, dequantized, in_place] = &mut floats;
    slice::encode(x, scale, format, overflow, &mut codes);
    slice::round(x, scale, format, overflow, values);
    slice::encode_and_round(x, scale, format, overflow, &mut both_codes, both_values);
    slice::decode(&codes, scale, format, decoded);
    slice::quantize_dequantize(&wide, scale, format, overflow, dequantized);
    in_place.copy_from_slice(&wide);
    slice::quantize_dequantize_in_place(in_place, scale, format, overflow);
    for at in 0..len {
        let what = format!("{:e} / {scale:e}, {format}, {overflow:?}, {len}", wide[at]);
        let code = code(wide[at], scale, format, overflow);
        assert_eq!([codes[at], both_codes[at]], [code; 2], "{what}");
        let value = fp8::decode(code, format);
        let numbers = [&*values, &*both_values].map(|values| comparable(values[at]));
        assert_eq!(numbers, [comparable(value as f32); 2], "{what}");
        let product = comparable((value * f64::from(scale)) as f32);
        let products = [&*decoded, &*dequantized, &*in_place].map(|values| comparable(values[at]));
        assert_eq!(products, [product; 3], "{what}");
        if !values[at].is_nan() {
            assert_eq!(values[at].is_sign_negative(), wide[at].is_sign_negative(), "{what}");
        }
    }
}

fn check_all_types(x: &[f32], scale: f32, format: Fp8Format, overflow: Overflow) {
    check(x, scale, format, overflow);
    check(&x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>(), scale, format, overflow);
    check(&x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>(), scale, format, overflow);
}

/// Every format and treatment of overflow.
fn modes() -> impl Iterator<Item = (Fp8Format, Overflow)> {
    FORMATS.into_iter().flat_map(|format| OVERFLOWS.map(|overflow| (format, overflow)))
}

#[test]
fn every_length_and_alignment_converts_like_its_elements() {
    on_all_instructions(|| {
        let x = spread(512, 20);
        for ((format, overflow), len) in modes().flat_map(|mode| LENGTHS.map(|len| (mode, len))) {
            for offset in [0, 1, 3, 5, 15] {
                check_all_types(&x[offset..offset + len], 0.37, format, overflow);
            }
        }
    });
}

#[test]
fn special_values_round_to_nearest_at_every_scale() {
    on_all_instructions(|| {
        for ((format, overflow), scale) in modes().flat_map(|mode| SCALES.map(|s| (mode, s))) {
            let x = special();
            check_all_types(&x, scale, format, overflow);
            let scaled: Vec<f32> = x.iter().map(|x| x * scale).collect();
            check(&scaled, scale, format, overflow);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

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

/// The codes named `source` in a golden file, of numbers.
fn check_golden<S: Source>(golden: &Golden, source: &str, x: &[S]) {
    for (format, name) in FORMATS.into_iter().zip(["e4m3fn", "e5m2"]) {
        for (mode, overflow) in [("sat", Overflow::Saturate), ("nonsat", Overflow::NonSaturating)] {
            let mut codes = vec![0; x.len()];
            slice::encode(x, 1.0, format, overflow, &mut codes);
            let expected = golden.u8s(&format!("{source}/{name}/{mode}"));
            assert!(codes == expected, "{source} {format} {mode}");
        }
    }
}

#[test]
fn codes_are_those_of_ml_dtypes() {
    on_all_instructions(|| {
        let golden = golden("conversions");
        check_golden(&golden, "f32", &golden.f32s("f32/bits"));
        check_golden(&golden, "bf16", &(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>());
        check_golden(&golden, "f16", &(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
        for (format, name) in FORMATS.into_iter().zip(["e4m3fn", "e5m2"]) {
            let mut values = vec![0.0; 256];
            slice::decode(&(0..=255).collect::<Vec<_>>(), 1.0, format, &mut values);
            let bits: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
            assert_eq!(bits, golden.u32s(&format!("decode/{name}/f32_bits")));
        }
    });
}

/// Code and value by `float8`.
fn by_float8(format: Fp8Format, x: f32) -> (u8, f32) {
    match format {
        Fp8Format::E4M3 => {
            let y = F8E4M3::from_f32(x);
            (y.to_bits(), y.to_f32())
        }
        Fp8Format::E5M2 => {
            let y = F8E5M2::from_f32(x);
            (y.to_bits(), y.to_f32())
        }
    }
}

/// Scalar `encode`, and `encode` and `round` of slices.
fn check_float8(format: Fp8Format, x: &[f32]) {
    let (mut codes, mut visible) = (vec![0; x.len()], vec![0; x.len()]);
    let mut values = vec![0.0; x.len()];
    slice::encode(x, 1.0, format, Overflow::Saturate, &mut codes);
    slice::round(x, 1.0, format, Overflow::Saturate, &mut values);
    slice::encode(x, 1.0, format, Overflow::SaturateFinite, &mut visible);
    for (at, &x) in x.iter().enumerate() {
        let (mut code, value) = by_float8(format, x);
        if x.is_nan() && format == Fp8Format::E5M2 {
            code = (code & 0x80) | 0x7E;
        }
        let seen = [codes[at], format.encode(x, Overflow::Saturate)];
        assert_eq!(seen, [code; 2], "{format} code of {:#010x}", x.to_bits());
        assert_eq!(comparable(values[at]), comparable(value), "{format} {:#010x}", x.to_bits());
        if !x.is_infinite() {
            assert_eq!(visible[at], code, "{format} code of finite {:#010x}", x.to_bits());
        }
    }
}

#[test]
fn every_4099th_f32_and_all_boundaries_round_as_in_float8() {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect();
    x.extend(special());
    for format in FORMATS {
        x.par_chunks(1 << 14).for_each(|x| check_float8(format, x));
    }
}

#[test]
#[ignore = "minutes long; run by cargo xtask exhaustive"]
fn every_f32_rounds_as_in_float8() {
    const BLOCK: u32 = 1 << 16;
    for format in FORMATS {
        (0..=u32::MAX / BLOCK).into_par_iter().for_each(|block| {
            let x: Vec<f32> = (0..BLOCK).map(|low| f32::from_bits(block * BLOCK + low)).collect();
            check_float8(format, &x);
        });
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
    let pools = [1, 3].map(pool);
    for len in [0, 1, 1000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 * (1 << 16) + 17] {
        let mut x = spread(len, 12);
        for (x, special) in x.iter_mut().step_by(997).zip(special()) {
            *x = special;
        }
        for (format, overflow) in FORMATS.into_iter().zip(OVERFLOWS) {
            let scale = 0.013;
            let results = || {
                let (mut codes, mut both) = (vec![0; len], vec![0; len]);
                let mut floats = [(); 6].map(|()| x.clone());
                let [values, of_both, decoded, qdq, in_place, scaled] = &mut floats;
                slice::encode(&x, scale, format, overflow, &mut codes);
                slice::round(&x, scale, format, overflow, values);
                slice::encode_and_round(&x, scale, format, overflow, &mut both, of_both);
                slice::decode(&codes, scale, format, decoded);
                slice::quantize_dequantize(&x, scale, format, overflow, qdq);
                slice::quantize_dequantize_in_place(in_place, scale, format, overflow);
                slice::scale_in_place(scaled, scale);
                let bits =
                    floats.map(|floats| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>());
                (codes, both, bits, slice::amax(&x))
            };
            let [one, three] = pools.each_ref().map(|pool| pool.install(results));
            assert!(one == three, "{len} elements, {format}");
        }
    }
}

/// One read gives what two give: blocks, tasks and threads, with special values in each.
#[test]
fn codes_and_amax_come_of_one_read() {
    on_all_instructions(one_read_is_enough);
}

fn one_read_is_enough() {
    let pools = [1, 3].map(pool);
    for len in [0, 1, 15, 16, 33, 4095, 4097, 70_001, 3 * (1 << 16) + 17] {
        for with_special in [false, true] {
            let mut x = spread(len, 12);
            if with_special {
                for (x, special) in x.iter_mut().step_by(997).zip(special()) {
                    *x = special;
                }
            }
            check_one_read(&x, &pools);
            check_one_read(&x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>(), &pools);
            check_one_read(&x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>(), &pools);
        }
    }
}

fn check_one_read<S: Source>(x: &[S], pools: &[rayon::ThreadPool]) {
    let len = x.len();
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let finite = wide.iter().filter(|x| x.is_finite());
    let amax = Amax {
        value: finite.fold(0.0, |amax, x| x.abs().max(amax)),
        non_finite: wide.iter().any(|x| !x.is_finite()),
        nan: wide.iter().any(|x| x.is_nan()),
    };
    for (format, overflow) in modes() {
        let scale = 0.013;
        let codes: Vec<u8> = wide.iter().map(|x| code(*x, scale, format, overflow)).collect();
        for pool in pools {
            let mut found = vec![1; len];
            let encode = || slice::encode_with_amax(x, scale, format, overflow, &mut found);
            let of_pool = pool.install(encode);
            assert_eq!([of_pool, slice::amax(x)], [amax; 2], "{len} elements, {format}");
            assert!(found == codes, "{len} elements, {format}");
        }
    }
}

#[test]
fn scaling_multiplies_every_element() {
    let x = spread(101, 30);
    let mut y = x.clone();
    slice::scale_in_place(&mut y, 0.3);
    let expected: Vec<f32> = x.iter().map(|x| x * 0.3).collect();
    assert_eq!(y, expected);
    let mut y = vec![0.0; x.len()];
    slice::scale(&x, 0.3, &mut y);
    assert_eq!(y, expected);
}

#[test]
fn amax_is_taken_over_finite_elements() {
    let check = |x: &[f32], value, non_finite| {
        let nan = x.iter().any(|x| x.is_nan());
        assert_eq!(slice::amax(x), Amax { value, non_finite, nan }, "{x:?}");
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
fn lengths_of_codes_that_differ_are_named() {
    slice::decode(&[1], 1.0, Fp8Format::E4M3, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "x has 2 elements and values has 1")]
fn both_outputs_must_have_the_length_of_the_input() {
    let (mut codes, mut values) = ([0; 2], [0.0; 1]);
    let x = [1.0f32, 2.0];
    slice::encode_and_round(&x, 1.0, Fp8Format::E4M3, Overflow::Saturate, &mut codes, &mut values);
}
