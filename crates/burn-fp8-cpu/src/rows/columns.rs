//! Products with a matrix of codes, which are decoded while they are multiplied.

use burn_fp8_core::{Fp8Format, element};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::slice::blocks::Blocks;
use crate::slice::same_length;
use crate::unit::arch;

/// Rows of codes that are multiplied at a time.
const ROWS: usize = 64;

/// Of these, rows that a single row of `x` is multiplied with in one go.
const FEW_ROWS: usize = 8;

/// Columns of a block of decoded codes: with [`ROWS`] rows 16 KiB of f32, which the first-level cache holds.
const COLUMNS: usize = 64;

/// Rows of `x` for which the codes are decoded once: the second-level cache holds their sums.
const BATCH: usize = 64;

/// The product of `x` `[M, K]` and the numbers that `codes` `[K, N]` stand for: `y` `[M, N]`, in f32, all row by row.
///
/// Codes are decoded in registers or in the first-level cache while they are multiplied: one row takes little longer than
/// reading the codes, a quarter of the bytes of f32. Sums are taken in an order that depends on M and on the vector instructions,
/// not on the values nor on the number of threads of rayon's current pool, each of which takes some columns.
///
/// f32 subnormals occur on the way where codes are subnormal: no matter on AMD and ARM, slow on Intel if there are many.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` give it.
pub fn matmul_codes(x: &[f32], codes: &[u8], shape: [usize; 3], format: Fp8Format, y: &mut [f32]) {
    matmul(x, codes, shape, None, format, y, 1 << 20);
}

/// The product of `x` `[M, K]` and the numbers that `codes` `[K, N]` stand for, times the scales of their blocks: `y` `[M, N]`, in f32, all row by row.
///
/// The products of a block are summed first, then multiplied by its scale. Runs on rayon's current pool; results do
/// not depend on the number of threads.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` and the blocks give it.
pub fn matmul_block_codes(
    x: &[f32],
    codes: &[u8],
    shape: [usize; 3],
    block: [usize; 2],
    scales: &[f32],
    format: Fp8Format,
    y: &mut [f32],
) {
    matmul(x, codes, shape, Some((block, scales)), format, y, 1 << 18);
}

/// Both, in strips of columns on several threads where there are as many multiplications.
fn matmul(
    x: &[f32],
    codes: &[u8],
    [m, k, n]: [usize; 3],
    blocks: Option<([usize; 2], &[f32])>,
    format: Fp8Format,
    y: &mut [f32],
    worthwhile: usize,
) {
    for (name, len, [rows, columns]) in
        [("x", x.len(), [m, k]), ("codes", codes.len(), [k, n]), ("y", y.len(), [m, n])]
    {
        assert!(
            rows.checked_mul(columns) == Some(len),
            "{name} has {len} elements and {rows} rows of {columns}; they must fit"
        );
    }
    if m * n == 0 {
        return;
    }
    if let Some((block, scales)) = blocks {
        let [down, across] = Blocks { columns: n, block }.grid(codes.len());
        same_length(("scales", scales.len()), ("the grid", down * across));
    }
    y.fill(0.0);
    if k == 0 {
        return;
    }
    let strip = |first: usize, width: usize, y: &mut [f32]| {
        let matrix = CodeColumns { codes, columns: n, first, width, format };
        match blocks {
            None => run(ColumnsProduct { x, depth: k, matrix, y }),
            Some((block, scales)) => {
                run_blocks(ColumnsProduct { x, depth: k, matrix, y }, block, scales)
            }
        }
    };
    // Whole cache lines of codes.
    let columns = n.div_ceil(rayon::current_num_threads()).next_multiple_of(64);
    if columns >= n || m.saturating_mul(codes.len()) < worthwhile {
        return strip(0, n, y);
    }
    let strips = (0..n).into_par_iter().step_by(columns).map(|first| {
        let width = columns.min(n - first);
        let mut y = vec![0.0; m * width];
        strip(first, width, &mut y);
        (first, width, y)
    });
    for (first, width, strip) in strips.collect::<Vec<_>>() {
        for (strip, y) in strip.chunks_exact(width).zip(y.chunks_exact_mut(n)) {
            y[first..first + width].copy_from_slice(strip);
        }
    }
}

/// Adds the product to `y`: of each block of K by itself, times the scales of its columns.
fn run_blocks(
    ColumnsProduct { x, depth: k, matrix, y }: ColumnsProduct<'_>,
    block: [usize; 2],
    scales: &[f32],
) {
    let CodeColumns { codes, columns: n, first, width, .. } = matrix;
    let across = n.div_ceil(block[1]);
    let (mut partial, mut rows) = (vec![0.0; y.len()], vec![]);
    for (start, scales) in (0..k).step_by(block[0]).zip(scales.chunks_exact(across)) {
        let depth = block[0].min(k - start);
        rows.clear();
        for row in x.chunks_exact(k) {
            rows.extend_from_slice(&row[start..start + depth]);
        }
        partial.fill(0.0);
        let matrix = CodeColumns { codes: &codes[start * n..], ..matrix };
        run(ColumnsProduct { x: &rows, depth, matrix, y: &mut partial });
        for (y, partial) in y.chunks_exact_mut(width).zip(partial.chunks_exact(width)) {
            add_scaled(y, partial, scales, first, block[1]);
        }
    }
}

/// Adds products of a block of rows, times the scales of their columns, which begin at column `first`.
fn add_scaled(y: &mut [f32], partial: &[f32], scales: &[f32], first: usize, width: usize) {
    let mut column = first;
    let (mut y, mut partial) = (y, partial);
    while !y.is_empty() {
        let count = (width - column % width).min(y.len());
        let (now, later) = y.split_at_mut(count);
        let (products, others) = partial.split_at(count);
        let scale = scales[column / width];
        now.iter_mut().zip(products).for_each(|(y, product)| *y += product * scale);
        (y, partial, column) = (later, others, column + count);
    }
}

/// Columns `first..first + width` of a row-major matrix of codes.
#[derive(Clone, Copy)]
struct CodeColumns<'a> {
    codes: &'a [u8],
    columns: usize,
    first: usize,
    width: usize,
    format: Fp8Format,
}

impl<'a> CodeColumns<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [u8] {
        &self.codes[row * self.columns + self.first..][..self.width]
    }
}

/// The product of `x` `[M, K]` and a matrix of `K` rows.
struct ColumnsProduct<'a> {
    x: &'a [f32],
    /// K.
    depth: usize,
    matrix: CodeColumns<'a>,
    /// `[M, width]`.
    y: &'a mut [f32],
}

/// Adds the product to `y`. No dimension is 0. What is added to a column does not depend on the others.
fn run(ColumnsProduct { x, depth, matrix, y }: ColumnsProduct<'_>) {
    let arch = arch();
    for (x, y) in x.chunks(BATCH * depth).zip(y.chunks_mut(BATCH * matrix.width)) {
        arch.dispatch(ColumnsProduct { x, depth, matrix, y });
    }
}

impl WithSimd for ColumnsProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.matrix.format {
            Fp8Format::E4M3 => self.multiply(simd, Fp8Format::E4M3),
            Fp8Format::E5M2 => self.multiply(simd, Fp8Format::E5M2),
        }
    }
}

impl ColumnsProduct<'_> {
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
