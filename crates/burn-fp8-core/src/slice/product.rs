//! A product with a matrix of codes, which are decoded while they are multiplied.

use pulp::{Arch, Simd, WithSimd};

use super::element;
use crate::Fp8Format;

/// Rows of codes that are multiplied at a time.
const ROWS: usize = 64;

/// Of these, rows that a single row of `x` is multiplied with in one go.
const FEW_ROWS: usize = 8;

/// Columns of a block of decoded codes: with [`ROWS`] rows 16 KiB of f32, which the first-level cache holds.
const COLUMNS: usize = 64;

/// Rows of `x` for which the codes are decoded once: the second-level cache holds their sums.
const BATCH: usize = 64;

/// Columns `first..first + width` of a row-major matrix of codes.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub codes: &'a [u8],
    pub columns: usize,
    pub first: usize,
    pub width: usize,
    pub format: Fp8Format,
}

impl<'a> Matrix<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [u8] {
        &self.codes[row * self.columns + self.first..][..self.width]
    }
}

/// The product of `x` `[M, K]` and a matrix of `K` rows.
pub(super) struct Product<'a> {
    pub x: &'a [f32],
    /// K.
    pub depth: usize,
    pub matrix: Matrix<'a>,
    /// `[M, width]`.
    pub y: &'a mut [f32],
}

/// Adds the product to `y`. No dimension is 0. What is added to a column does not depend on the others.
pub(super) fn run(Product { x, depth, matrix, y }: Product<'_>) {
    let arch = Arch::new();
    for (x, y) in x.chunks(BATCH * depth).zip(y.chunks_mut(BATCH * matrix.width)) {
        arch.dispatch(Product { x, depth, matrix, y });
    }
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.matrix.format {
            Fp8Format::E4M3 => self.multiply(simd, Fp8Format::E4M3),
            Fp8Format::E5M2 => self.multiply(simd, Fp8Format::E5M2),
        }
    }
}

impl Product<'_> {
    /// Goes through the codes from the first to the last, some rows at a time.
    #[inline(always)]
    fn multiply<S: Simd>(mut self, simd: S, format: Fp8Format) {
        let matrix = self.matrix;
        let decode = |code| element::decode(code, format);
        let decode_finite = |code| element::decode_finite(code, format);
        let single = self.y.len() == matrix.width;
        let mut values = [[0f32; COLUMNS]; ROWS];
        for start in (0..self.depth).step_by(ROWS) {
            let end = self.depth.min(start + ROWS);
            // Reads each row from end to end, which is what prefetchers are good at: on one thread 1.3 times as fast as
            // going straight to the blocks, on two 1.5 times.
            let finite = (start..end).fold(true, |f, row| f & all_finite(matrix.row(row), format));
            let mut start = start;
            while single && start + FEW_ROWS <= end {
                let factors = core::array::from_fn(|r| self.x[start + r]);
                let codes = core::array::from_fn(|r| matrix.row(start + r));
                match finite {
                    true => multiply_row::<S>(factors, codes, decode_finite, self.y),
                    false => multiply_row::<S>(factors, codes, decode, self.y),
                }
                start += FEW_ROWS;
            }
            if start == end {
                continue;
            }
            for column in (0..matrix.width).step_by(COLUMNS) {
                let block = COLUMNS.min(matrix.width - column);
                for (row, values) in (start..end).zip(&mut values) {
                    let codes = &matrix.row(row)[column..][..block];
                    match finite {
                        true => decode_block(codes, decode_finite, values),
                        false => decode_block(codes, decode, values),
                    }
                }
                self.add_block(simd, start, &values[..end - start], (column, block));
            }
        }
    }

    /// Adds the products with a block of decoded codes, which starts at row `start`, to `block` columns from `column` on.
    #[inline(always)]
    fn add_block<S: Simd>(
        &mut self,
        simd: S,
        start: usize,
        values: &[[f32; COLUMNS]],
        (column, block): (usize, usize),
    ) {
        let rows = |i: usize| &self.x[i * self.depth + start..][..values.len()];
        let width = self.matrix.width;
        let m = self.y.len() / width;
        let mut ys = self.y.chunks_exact_mut(width).map(|y| &mut y[column..][..block]);
        let mut store = |sums: &[[f32; COLUMNS]]| {
            for (sums, y) in sums.iter().zip(&mut ys) {
                for (sum, y) in sums.iter().zip(y) {
                    *y += sum;
                }
            }
        };
        let mut i = 0;
        while i + 4 <= m {
            store(&sums::<S, 4, 2>(simd, core::array::from_fn(|p| rows(i + p)), values));
            i += 4;
        }
        match m - i {
            3 => store(&sums::<S, 3, 2>(simd, core::array::from_fn(|p| rows(i + p)), values)),
            2 => store(&sums::<S, 2, 4>(simd, core::array::from_fn(|p| rows(i + p)), values)),
            1 => store(&sums::<S, 1, 4>(simd, [rows(i)], values)),
            _ => {}
        }
    }
}

/// The products of `P` rows with decoded codes, `V` vectors of columns at a time, so that their sums stay in registers.
#[inline(always)]
fn sums<S: Simd, const P: usize, const V: usize>(
    simd: S,
    x: [&[f32]; P],
    values: &[[f32; COLUMNS]],
) -> [[f32; COLUMNS]; P] {
    let mut result = [[0f32; COLUMNS]; P];
    let x = x.map(|x| &x[..values.len()]);
    for vector in (0..COLUMNS / S::F32_LANES).step_by(V) {
        let mut sums = [[simd.splat_f32s(0.0); V]; P];
        for (r, values) in values.iter().enumerate() {
            let values = &S::as_simd_f32s(values).0[vector..][..V];
            for (sums, x) in sums.iter_mut().zip(x) {
                let factor = simd.splat_f32s(x[r]);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = simd.mul_add_e_f32s(factor, *value, *sum);
                }
            }
        }
        for (result, sums) in result.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(result).0[vector..][..V].copy_from_slice(&sums);
        }
    }
    result
}

/// Adds the product of one row with a few rows of codes, decoded in registers.
#[inline(always)]
fn multiply_row<S: Simd>(
    factors: [f32; FEW_ROWS],
    codes: [&[u8]; FEW_ROWS],
    decode: impl Fn(u8) -> f32,
    y: &mut [f32],
) {
    let codes = codes.map(|codes| &codes[..y.len()]);
    for (j, y) in y.iter_mut().enumerate() {
        for r in 0..FEW_ROWS {
            let value = decode(codes[r][j]);
            // Scalar CPUs may have no fused instruction, and emulate it at the cost of a function call.
            *y = match S::IS_SCALAR {
                true => factors[r] * value + *y,
                false => factors[r].mul_add(value, *y),
            };
        }
    }
}

/// Columns beyond the block keep what they hold; nobody reads what comes of them.
#[inline(always)]
fn decode_block(codes: &[u8], decode: impl Fn(u8) -> f32, values: &mut [f32; COLUMNS]) {
    for (code, value) in codes.iter().zip(values) {
        *value = decode(*code);
    }
}

/// Whether no code is infinite or NaN.
#[inline(always)]
fn all_finite(codes: &[u8], format: Fp8Format) -> bool {
    let first = match format {
        Fp8Format::E4M3 => 0x7F,
        Fp8Format::E5M2 => 0x7C,
    };
    // Without branches: sixty-four codes a step.
    codes.iter().fold(0, |found, code| found | u8::from(code & 0x7F >= first)) == 0
}
