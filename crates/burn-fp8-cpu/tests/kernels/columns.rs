//! The product with a matrix of codes, against f64 sums of the numbers of the specification.

use crate::common::{
    Exact, FORMATS, Sums, comparable, number, on_all_instructions, pool, some_codes, spread, wide,
};
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::matmul_codes;
use burn_fp8_cpu::slice::decode;

/// Asserts that products are those of the numbers that codes stand for, up to the roundings of f32 sums in any order.
#[track_caller]
fn assert_product(x: &[f32], codes: &[u8], shape: [usize; 3], format: Fp8Format, y: &[f32]) {
    let numbers: Vec<f64> = codes.iter().map(|code| number(*code, format)).collect();
    Exact::product(&wide(x), &numbers, shape).assert(y, Sums::Nearest, &format!("{shape:?}"));
}

const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 7, 3],
    [1, 8, 16],
    [1, 64, 64],
    [1, 65, 130],
    [1, 203, 77],
    [2, 9, 65],
    [3, 64, 128],
    [4, 63, 63],
    [5, 130, 66],
    [6, 1, 200],
    [7, 200, 1],
    [8, 129, 97],
    [17, 31, 33],
];

#[test]
fn products_are_sums_of_the_numbers_of_the_specification() {
    on_all_instructions(|| {
        for format in FORMATS {
            for shape @ [m, k, n] in SHAPES {
                let (x, codes) = (spread(m * k, 8), some_codes(k * n, format));
                let mut y = vec![f32::NAN; m * n];
                matmul_codes(&x, &codes, shape, format, &mut y);
                assert_product(&x, &codes, shape, format, &y);
            }
        }
    });
}

/// Products of integers that f32 holds are exact in any order: no term is left out or taken twice.
#[test]
fn products_of_small_integers_are_exact() {
    on_all_instructions(|| {
        for format in FORMATS {
            for [m, k, n] in SHAPES {
                let x: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
                let codes: Vec<u8> = some_codes(k * n, format)
                    .iter()
                    .map(|code| format.encode(f32::from(code % 7) - 3.0, Default::default()))
                    .collect();
                let mut values = vec![0.0; k * n];
                decode(&codes, 1.0, format, &mut values);
                let mut y = vec![f32::NAN; m * n];
                matmul_codes(&x, &codes, [m, k, n], format, &mut y);
                for (index, y) in y.iter().enumerate() {
                    let (i, j) = (index / n, index % n);
                    let expected: f32 = (0..k).map(|l| x[i * k + l] * values[l * n + j]).sum();
                    assert_eq!(*y, expected, "{m}×{k}×{n} {format} [{i}, {j}]");
                }
            }
        }
    });
}

#[test]
fn every_code_is_decoded_as_elsewhere() {
    on_all_instructions(|| {
        let codes: Vec<u8> = (0..=255).collect();
        for format in FORMATS {
            let mut values = [0.0; 256];
            decode(&codes, 1.0, format, &mut values);
            for m in [1, 2, 5] {
                let mut y = vec![0.0; m * 256];
                matmul_codes(&vec![1.0; m], &codes, [m, 1, 256], format, &mut y);
                for (index, y) in y.iter().enumerate() {
                    // 0 + −0 is 0.
                    let expected = values[index % 256] + 0.0;
                    assert_eq!(comparable(*y), comparable(expected), "{format} {:#x}", index % 256);
                }
            }
        }
    });
}

/// One NaN or infinite code shows in its column and nowhere else, whatever path the rest takes; so does a NaN in `x` in its row.
#[test]
fn what_is_not_finite_stays_visible() {
    on_all_instructions(|| {
        let format = Fp8Format::E4M3;
        for [m, k, n] in [[1, 72, 100], [3, 72, 100], [8, 72, 100]] {
            let (mut x, mut codes) = (spread(m * k, 4), some_codes(k * n, format));
            let mut clean = vec![0.0; m * n];
            matmul_codes(&x, &codes, [m, k, n], format, &mut clean);
            codes[40 * n + 70] = 0xFF;
            let mut y = vec![0.0; m * n];
            matmul_codes(&x, &codes, [m, k, n], format, &mut y);
            for (index, (y, clean)) in y.iter().zip(&clean).enumerate() {
                match index % n {
                    70 => assert!(y.is_nan()),
                    _ => assert_eq!(y.to_bits(), clean.to_bits(), "{index}"),
                }
            }
            x[(m - 1) * k + 3] = f32::NAN;
            matmul_codes(&x, &codes, [m, k, n], format, &mut y);
            assert!(y[(m - 1) * n..].iter().all(|y| y.is_nan()));
            assert!(y[..(m - 1) * n].iter().enumerate().all(|(i, y)| y.is_nan() == (i % n == 70)));
        }
    });
}

#[test]
fn infinite_codes_and_values_multiply_as_ieee_says() {
    let mut y = [0.0; 4];
    // +inf, −inf, 0, 1 in E5M2.
    let codes = [0x7C, 0xFC, 0x00, 0x3C];
    matmul_codes(&[2.0], &codes, [1, 1, 4], Fp8Format::E5M2, &mut y);
    assert_eq!(y, [f32::INFINITY, f32::NEG_INFINITY, 0.0, 2.0]);
    matmul_codes(&[f32::INFINITY], &codes, [1, 1, 4], Fp8Format::E5M2, &mut y);
    assert_eq!(y.map(f32::is_nan), [false, false, true, false]);
}

#[test]
fn threads_change_nothing() {
    for [m, k, n] in [[1, 600, 2000], [1, 2100, 517], [3, 999, 400], [8, 300, 1000]] {
        let (x, mut codes) = (spread(m * k, 8), some_codes(k * n, Fp8Format::E4M3));
        for nan in [false, true] {
            if nan {
                codes[k * n / 2] = 0x7F;
            }
            let (mut one, mut three) = (vec![0.0; m * n], vec![1.0; m * n]);
            for (threads, y) in [(1, &mut one), (3, &mut three)] {
                let product = || matmul_codes(&x, &codes, [m, k, n], Fp8Format::E4M3, y);
                pool(threads).install(product);
            }
            let bits = |y: &[f32]| y.iter().map(|y| comparable(*y)).collect::<Vec<_>>();
            assert_eq!(bits(&one), bits(&three), "{m}×{k}×{n}");
        }
    }
}

#[test]
fn empty_products_are_zeros() {
    let mut y = [1.0; 6];
    matmul_codes(&[], &[], [2, 0, 3], Fp8Format::E4M3, &mut y);
    assert_eq!(y, [0.0; 6]);
    matmul_codes(&[], &[1, 2, 3], [0, 1, 3], Fp8Format::E4M3, &mut []);
    matmul_codes(&[1.0], &[], [1, 1, 0], Fp8Format::E4M3, &mut []);
}

#[test]
#[should_panic(expected = "codes has 5 elements and 2 rows of 3; they must fit")]
fn lengths_are_checked() {
    matmul_codes(&[1.0, 2.0], &[0; 5], [1, 2, 3], Fp8Format::E4M3, &mut [0.0; 3]);
}
