//! Codes and rounded values are those of `float8` 0.7, whose saturating conversion rounds every f32 right.
//!
//! `float8` differs in NaNs only: its E5M2 keeps payload bits, ml_dtypes and this crate do not. And it has one treatment of
//! infinities, to saturate.

mod common;

use burn_fp8_core::{Fp8Format, Overflow, slice};
use common::{FORMATS, comparable, special_values};
use float8::{F8E4M3, F8E5M2};
use rayon::prelude::*;

/// Code and value by `float8`.
fn peer(format: Fp8Format, x: f32) -> (u8, f32) {
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

/// Checks one block: scalar `encode`, and `encode` and `round` of slices.
fn check(format: Fp8Format, x: &[f32]) {
    let mut codes = vec![0; x.len()];
    let mut values = vec![0.0; x.len()];
    let mut visible = vec![0; x.len()];
    slice::encode(x, 1.0, format, Overflow::Saturate, &mut codes);
    slice::round(x, 1.0, format, Overflow::Saturate, &mut values);
    slice::encode(x, 1.0, format, Overflow::SaturateFinite, &mut visible);
    for (at, &x) in x.iter().enumerate() {
        let (mut code, value) = peer(format, x);
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
    x.extend(special_values());
    for format in FORMATS {
        x.par_chunks(1 << 14).for_each(|x| check(format, x));
    }
}

#[test]
#[ignore = "minutes long; run by cargo xtask exhaustive"]
fn every_f32_rounds_as_in_float8() {
    const BLOCK: u32 = 1 << 16;
    for format in FORMATS {
        (0..=u32::MAX / BLOCK).into_par_iter().for_each(|block| {
            let x: Vec<f32> = (0..BLOCK).map(|low| f32::from_bits(block * BLOCK + low)).collect();
            check(format, &x);
        });
    }
}
