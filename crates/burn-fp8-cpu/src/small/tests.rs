//! Against f64, and against itself at other addresses.
#![allow(unsafe_code, reason = "vector instructions")]

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};

use super::*;
use crate::codes::Codes;
use crate::epilogue::{Epilogue, Output};

/// Some finite codes.
fn codes(count: usize, seed: usize) -> Vec<u8> {
    let code = |i: usize| ((i + seed).wrapping_mul(0x9E37_79B9) >> 11) as u8 & 0xBB;
    (0..count).map(code).collect()
}

/// The product on this path, whatever the number of rows.
fn product(lhs: Codes<'_>, rhs: Codes<'_>, threads: usize) -> Vec<f32> {
    let ([m, k], [_, n], batch) = (lhs.shape, rhs.shape, lhs.batch);
    let mut sums = vec![f32::NAN; batch * m * n];
    let mut output = Output::F32(&mut sums);
    let epilogue = Epilogue::scaled(1.0, 1.0);
    let finish = Finish::new(&epilogue, &mut output, batch, [m, n], None);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    // SAFETY: tests ask whether the machine has the instructions.
    pool.install(|| unsafe { run(&Product { lhs, rhs, batch, m, n, k, blocks: None }, &finish) });
    sums
}

fn decode(matrix: &Codes<'_>, row: usize, column: usize) -> f64 {
    f64::from(matrix.format.decode(matrix.at(row, column)))
}

/// Whether all sums are what they are in f64, but for f32's rounding.
fn check(lhs: Codes<'_>, rhs: Codes<'_>) {
    let ([m, k], [_, n]) = (lhs.shape, rhs.shape);
    let sums = product(lhs, rhs, 1);
    for (index, sum) in sums.iter().enumerate() {
        let (batch, row, column) = (index / (m * n), index / n % m, index % n);
        let (lhs, rhs) = (lhs.matrix(batch), rhs.matrix(batch));
        let terms = (0..k).map(|i| decode(&lhs, row, i) * decode(&rhs, i, column));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        let error = (f64::from(*sum) - exact).abs();
        assert!(
            error <= size * 1e-6 * (k as f64).sqrt(),
            "{m} × {n} × {k} [{row}, {column}]: {sum} {exact}"
        );
    }
}

/// As [`Codes::strided`], and the same elements in the other layout.
fn layouts<'a>(
    codes: &'a [u8],
    format: Fp8Format,
    [rows, columns]: [usize; 2],
    gap: usize,
) -> [Codes<'a>; 2] {
    let rows_first = Codes::strided(codes, format, [rows, columns], columns + gap);
    [rows_first, Codes::strided(codes, format, [columns, rows], rows + gap).transpose()]
}

#[test]
fn ragged_products_are_those_of_f64() {
    if !crate::unit::has_avx512() {
        burn_fp8_test_support::skip("no AVX-512 with VBMI and BF16");
        return;
    }
    let shapes = [
        [1, 1, 1],
        [1, 64, 64],
        [2, 3, 5],
        [3, 65, 67],
        [4, 130, 257],
        [5, 31, 515],
        [7, 100, 3],
        [1, 257, 1100],
        [6, 68, 129],
        [13, 70, 90],
        [16, 64, 1030],
        [23, 33, 66],
    ];
    let bytes = codes(300 * 1200, 5);
    for (i, [m, n, k]) in shapes.into_iter().enumerate() {
        for gap in [0, 3] {
            let formats = [[E4M3, E5M2], [E5M2, E4M3]][i % 2];
            for lhs in layouts(&bytes[i..], formats[0], [m, k], gap) {
                for rhs in layouts(&bytes[7 * i..], formats[1], [k, n], gap) {
                    check(lhs, rhs);
                }
            }
        }
    }
}

/// Codes that end with their slice, so that a read beyond it is seen by tools that look for it.
#[test]
fn batches_and_exact_slices_are_read() {
    if !crate::unit::has_avx512() {
        burn_fp8_test_support::skip("no AVX-512 with VBMI and BF16");
        return;
    }
    let (batch, [m, n, k]) = (3, [2, 37, 70]);
    let (a, b) = (codes(batch * m * k, 1), codes(batch * k * n, 2));
    check(Codes::batch(&a, E4M3, batch, [m, k]), Codes::batch(&b, E4M3, batch, [k, n]));
    let transposed = Codes::batch(&b, E4M3, batch, [n, k]).transpose();
    check(Codes::batch(&a, E4M3, batch, [k, m]).transpose(), transposed);
    let one = Codes::rows(&b[..k * n], E4M3, [k, n]).broadcast(batch);
    check(Codes::batch(&a, E4M3, batch, [m, k]), one);
}

/// Tiles begin where cache lines do, which must not be seen in the results.
#[test]
fn sums_do_not_depend_on_addresses() {
    if !crate::unit::has_avx512() {
        burn_fp8_test_support::skip("no AVX-512 with VBMI and BF16");
        return;
    }
    for [m, n, k] in [[1, 1024, 70], [5, 576, 600], [7, 640, 90]] {
        let a = codes(m * k, 6);
        let b = codes(k * n, 7);
        let lhs = Codes::rows(&a, E4M3, [m, k]);
        let mut moved = vec![0; k * n + 64];
        let mut at = |offset: usize| {
            let start = (64 + offset - moved.as_ptr().addr() % 64) % 64;
            moved[start..][..k * n].copy_from_slice(&b);
            let rhs = Codes::rows(&moved[start..][..k * n], E4M3, [k, n]);
            check(lhs, rhs);
            product(lhs, rhs, 2)
        };
        let expected = at(0);
        for offset in [1, 16, 48, 63] {
            assert!(at(offset) == expected, "{m} × {n} × {k} at {offset}");
        }
    }
}
