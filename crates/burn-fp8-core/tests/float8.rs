//! Numbers of `float8` and codes are the same bytes, in the same place.

use burn_fp8_core::float8::{
    Float8, codes_of, codes_of_mut, from_codes, into_codes, numbers_of, numbers_of_mut,
};
use burn_fp8_core::slice;
use burn_fp8_core::{Fp8Format, Overflow};
use float8::{F8E4M3, F8E5M2};

/// Of every code, there and back; and what the slice functions make of them.
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

    let mut values = [0.0; 256];
    slice::decode(codes_of(&numbers), 1.0, format, &mut values);
    for (value, number) in values.iter().zip(&numbers) {
        assert!(*value == to_f32(number) || value.is_nan() && to_f32(number).is_nan());
    }
    // Written in place: the finite numbers in reverse.
    let finite: Vec<f32> = values.into_iter().filter(|x| x.is_finite()).rev().collect();
    let place = numbers.as_ptr();
    let written = &mut numbers[..finite.len()];
    slice::encode(&finite, 1.0, format, Overflow::Saturate, codes_of_mut(written));
    assert_eq!(written.iter().map(to_f32).collect::<Vec<_>>(), finite);

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
