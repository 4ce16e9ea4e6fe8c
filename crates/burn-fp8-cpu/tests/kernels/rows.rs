//! The product with a matrix whose rows are summed over, against f64 sums of the numbers of the specification.

use crate::common::{
    Exact, FORMATS, Sums, number, on_all_instructions, pool, some_codes, spread, transpose, wide,
};
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Rows, matmul_rows};
use half::{bf16, f16};

const SHAPES: [[usize; 3]; 21] = [
    [1, 1, 1],
    [1, 7, 3],
    [1, 31, 5],
    [1, 32, 16],
    [1, 33, 2],
    [1, 64, 64],
    [1, 1100, 7],
    [1, 2048, 131],
    [2, 9, 65],
    [3, 64, 128],
    [4, 63, 63],
    [5, 1030, 66],
    [6, 1, 200],
    [7, 200, 1],
    [100, 1030, 13],
    [37, 3100, 8],
    [8, 129, 97],
    [17, 31, 33],
    // More of K than is multiplied at a time.
    [2, 4200, 35],
    [6, 2830, 3],
    [8, 2100, 19],
];

/// Asserts that products are those of `numbers` `[N, K]`, up to the roundings of f32 sums in any order.
#[track_caller]
fn assert_products(rows: Rows<'_>, numbers: &[f64], shape @ [m, k, n]: [usize; 3], size: f32) {
    let x: Vec<f32> = spread(m * k, 8).into_iter().map(|x| x * size).collect();
    let mut y = vec![f32::NAN; m * n];
    matmul_rows(&x, rows, shape, &mut y);
    let exact = Exact::product(&wide(&x), &transpose(numbers, [n, k]), shape);
    exact.assert(&y, Sums::Nearest, &format!("{shape:?}"));
}

#[test]
fn products_are_sums_of_the_numbers_of_the_specification() {
    on_all_instructions(|| {
        for format in FORMATS {
            for shape @ [_, k, n] in SHAPES {
                let codes = some_codes(k * n, format);
                let numbers: Vec<f64> = codes.iter().map(|code| number(*code, format)).collect();
                // Rows that are multiplied by a power of two on the way must not leave the range.
                for size in [1.0, 1e30, 1e-30] {
                    assert_products(Rows::Codes(&codes, format), &numbers, shape, size);
                }
            }
        }
    });
}

#[test]
fn numbers_of_two_bytes_are_multiplied_as_they_are() {
    on_all_instructions(|| {
        for shape @ [_, k, n] in SHAPES {
            let numbers = spread(k * n, 5);
            let halves: Vec<bf16> = numbers.iter().copied().map(bf16::from_f32).collect();
            let exact: Vec<f64> = halves.iter().map(|x| f64::from(x.to_f32())).collect();
            assert_products(Rows::Bf16(&halves), &exact, shape, 1.0);
            let halves: Vec<f16> = numbers.iter().copied().map(f16::from_f32).collect();
            let exact: Vec<f64> = halves.iter().map(|x| f64::from(x.to_f32())).collect();
            assert_products(Rows::F16(&halves), &exact, shape, 1.0);
        }
    });
}

#[test]
fn blocks_have_scales() {
    on_all_instructions(|| {
        for format in FORMATS {
            for shape @ [_, k, n] in SHAPES {
                for block in [[1, 32], [3, 5], [16, 128], [128, 64], [1, 2000]] {
                    let grid = [n.div_ceil(block[0]), k.div_ceil(block[1])];
                    let scales: Vec<f32> =
                        (1..=grid[0] * grid[1]).map(|i| 0.37 * i as f32).collect();
                    let codes = some_codes(k * n, format);
                    let numbers = codes.iter().enumerate().map(|(i, code)| {
                        let scale = scales[i / k / block[0] * grid[1] + i % k / block[1]];
                        number(*code, format) * f64::from(scale)
                    });
                    let numbers: Vec<f64> = numbers.collect();
                    let rows: Rows<'_> =
                        Rows::Blocks { codes: &codes, format, block, scales: &scales };
                    assert_products(rows, &numbers, shape, 1.0);
                }
            }
        }
    });
}

/// Every code at every place of a vector: its row alone is what the code makes of it.
#[test]
fn codes_that_are_not_finite_stay_in_their_rows() {
    on_all_instructions(|| {
        let [k, n] = [70, 9];
        for format in FORMATS {
            let special = (0..=255u8).filter(|code| !number(*code, format).is_finite());
            for code in special {
                for place in [0, 1, 2, 3, 31, 32, 63, 64, 69] {
                    for m in [1, 3] {
                        let mut codes = some_codes(k * n, format);
                        codes[4 * k + place] = code;
                        let x = vec![1.0; m * k];
                        // Blocks of 32 are decoded by other instructions.
                        let (block, scales) = ([1, 32], vec![1.0; n * k.div_ceil(32)]);
                        let (codes, scales) = (&codes[..], &scales[..]);
                        for rows in [
                            Rows::Codes(codes, format),
                            Rows::Blocks { codes, format, block, scales },
                        ] {
                            let mut y = vec![0.0; m * n];
                            matmul_rows(&x, rows, [m, k, n], &mut y);
                            for (index, y) in y.iter().enumerate() {
                                match (index % n == 4, number(code, format)) {
                                    (false, _) => assert!(y.is_finite()),
                                    (true, special) if special.is_nan() => assert!(y.is_nan()),
                                    (true, special) => assert_eq!(f64::from(*y), special),
                                }
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Every code alone, and infinite and NaN inputs.
#[test]
fn every_code_is_multiplied_exactly() {
    for format in FORMATS {
        let codes: Vec<u8> = (0..=255).collect();
        for (m, x) in [(1, 3.0f32), (1, -448.0), (1, f32::INFINITY), (1, f32::NAN)]
            .into_iter()
            .flat_map(|(m, x)| [(m, x), (m + 1, x)])
        {
            let mut y = vec![0.0; m * 256];
            matmul_rows(&vec![x; m], Rows::Codes(&codes, format), [m, 1, 256], &mut y);
            for (index, y) in y.iter().enumerate() {
                let exact = (f64::from(x) * number(codes[index % 256], format)) as f32;
                assert!(*y == exact || y.is_nan() && exact.is_nan(), "{x} × {index}: {y}");
            }
        }
    }
}

/// 33 columns of which each holds all codes in turn: each place of a vector sees each code.
#[test]
fn every_code_at_every_place() {
    for format in FORMATS {
        for (place, m) in (0..33).flat_map(|place| [(place, 1), (place, 2)]) {
            let mut x = vec![0.0; 33 * m];
            x.chunks_mut(33).for_each(|x| x[place] = 1.0);
            let rows = (0..=255u8).filter(|code| number(*code, format).is_finite());
            let rows: Vec<u8> = rows.collect();
            let codes: Vec<u8> = rows.iter().flat_map(|code| [*code; 33]).collect();
            let mut y = vec![0.0; m * rows.len()];
            matmul_rows(&x, Rows::Codes(&codes, format), [m, 33, rows.len()], &mut y);
            for (y, code) in y.iter().zip(rows.iter().cycle()) {
                assert_eq!(f64::from(*y), number(*code, format), "{code:#x}");
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for [m, k, n] in [[1, 1500, 700], [5, 800, 700]] {
        let (x, codes) = (spread(m * k, 8), some_codes(k * n, Fp8Format::E4M3));
        let results = [1, 2, 3].map(|threads| {
            let mut y = vec![0f32; m * n];
            let rows = Rows::Codes(&codes, Fp8Format::E4M3);
            pool(threads).install(|| matmul_rows(&x, rows, [m, k, n], &mut y));
            y.iter().map(|y| y.to_bits()).collect::<Vec<_>>()
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }
}

#[test]
fn empty_matrices_are_zeros() {
    let mut y = [1.0; 6];
    matmul_rows(&[], Rows::Codes(&[], Fp8Format::E4M3), [2, 0, 3], &mut y);
    assert_eq!(y, [0.0; 6]);
    matmul_rows(&[], Rows::Codes(&[1, 2, 3], Fp8Format::E4M3), [0, 1, 3], &mut []);
}

#[test]
#[should_panic(expected = "the matrix has 5 elements and 3 rows of 2; they must fit")]
fn lengths_must_fit() {
    matmul_rows(&[1.0, 2.0], Rows::Codes(&[0; 5], Fp8Format::E4M3), [1, 2, 3], &mut [0.0; 3]);
}
