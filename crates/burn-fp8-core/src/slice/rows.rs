//! Products with a matrix whose rows are summed over: of codes, or of numbers in a type of two bytes.
//!
//! Some rows are decoded at a time, for a while of K, and multiplied by all rows of `x` while the first-level cache holds them. So the matrix is read
//! once, from end to end, and one row of `x` takes about as long as reading it.

use core::ops::Range;

use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};

use super::strips::in_strips;
use super::{Source, element, same_length};
use crate::Fp8Format;

/// K that is decoded at a time.
const DEPTH: usize = 1024;

/// Rows that are decoded at a time: with [`DEPTH`] 16 KiB of f32.
const HEIGHT: usize = 4;

/// Of these, rows whose sums are in registers at a time, and rows of `x`.
const TILE: [usize; 2] = [4, 2];

/// Numbers of the longest vector: K is padded with zeros to a multiple of it.
const LANES: usize = 16;

/// A matrix `[N, K]`, row by row.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Of numbers in bf16.
    Bf16(&'a [bf16]),
    /// Of numbers in f16.
    F16(&'a [f16]),
    /// Of codes, which stand for numbers.
    Codes(&'a [u8], Fp8Format),
    /// Of codes, each times the scale of its block.
    Blocks {
        /// The codes.
        codes: &'a [u8],
        /// What they are codes of.
        format: Fp8Format,
        /// Rows and columns that share a scale.
        block: [usize; 2],
        /// `[⌈N / rows⌉, ⌈K / columns⌉]`.
        scales: &'a [f32],
    },
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::Codes(codes, _) | Self::Blocks { codes, .. } => codes.len(),
        }
    }
}

/// `x` `[M, K]` times `matrix` `[N, K]` transposed: `y` `[M, N]`, in f32, all row by row.
///
/// A scale multiplies its codes, or the sum of their products. Sums are taken in an order that depends on the shape, on whether all codes are finite, and
/// on the vector instructions, not on the number of threads. With the feature `rayon` it runs on rayon's current pool.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` and the blocks give it.
pub fn matmul_rows(x: &[f32], matrix: Rows<'_>, [m, k, n]: [usize; 3], y: &mut [f32]) {
    for (name, len, [rows, columns]) in
        [("x", x.len(), [m, k]), ("the matrix", matrix.len(), [n, k]), ("y", y.len(), [m, n])]
    {
        assert!(
            rows.checked_mul(columns) == Some(len),
            "{name} has {len} elements and {rows} rows of {columns}; they must fit"
        );
    }
    if let Rows::Blocks { block: [rows, columns], scales, .. } = matrix {
        same_length(("scales", scales.len()), ("the grid", n.div_ceil(rows) * k.div_ceil(columns)));
    }
    if k == 0 {
        y.fill(0.0);
    }
    if m * n * k == 0 || m == 1 && one_row(x, matrix, y) {
        return;
    }
    let (x, arch) = (pack(x, k), Arch::new());
    in_strips([m, k, n], HEIGHT, y, |rows, y| {
        arch.dispatch(Strip { x: &x, shape: [m, k], matrix, rows, y });
    });
}

/// Rows of `x` for a while of K after the other, `[⌈K / DEPTH⌉][M][depth]`.
fn pack(x: &[f32], k: usize) -> Vec<f32> {
    let mut packed = Vec::with_capacity(x.len() / k * k.next_multiple_of(LANES));
    for start in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - start);
        for row in x.chunks_exact(k) {
            packed.extend_from_slice(&row[start..][..depth]);
            packed.resize(packed.len().next_multiple_of(LANES), 0.0);
        }
    }
    packed
}

/// The product with some rows of the matrix. No dimension is 0.
struct Strip<'a> {
    x: &'a [f32],
    shape: [usize; 2],
    matrix: Rows<'a>,
    rows: Range<usize>,
    /// `[M, rows]`.
    y: &'a mut [f32],
}

impl WithSimd for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, simd: A) {
        let Self { x, shape: [m, k], matrix, rows, y } = self;
        let (first, count) = (rows.start, rows.len());
        let mut decoded = [[0f32; DEPTH]; HEIGHT];
        // `[M][HEIGHT][lanes]`.
        let mut sums = vec![simd.splat_f32s(0.0); m * HEIGHT];
        for start in (0..count).step_by(HEIGHT) {
            let height = HEIGHT.min(count - start);
            sums.fill(simd.splat_f32s(0.0));
            for from in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - from);
                let padded = depth.next_multiple_of(LANES);
                for (row, decoded) in decoded[..height].iter_mut().enumerate() {
                    ask(matrix, first + start + HEIGHT + row, k, from);
                    decode(matrix, first + start + row, k, from, &mut decoded[..depth]);
                    decoded[depth..padded].fill(0.0);
                }
                let x = &x[from * m..][..m * padded];
                multiply(simd, x, &decoded[..height], padded, &mut sums);
            }
            for (sums, y) in sums.chunks_exact(HEIGHT).zip(y.chunks_exact_mut(count)) {
                for (sum, y) in sums.iter().zip(&mut y[start..start + height]) {
                    *y = simd.reduce_sum_f32s(*sum);
                }
            }
        }
    }
}

/// The product of one row, where there are instructions that convert elements in registers: whether that was done.
fn one_row(x: &[f32], matrix: Rows<'_>, y: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use super::row::{Codes, Numbers, Scales, multiply};
        let (codes, format, scales) = match matrix {
            Rows::Bf16(numbers) => return multiply::<Numbers<bf16>>(x, numbers, None, y),
            Rows::F16(numbers) => return multiply::<Numbers<f16>>(x, numbers, None, y),
            Rows::Codes(codes, format) => (codes, format, None),
            Rows::Blocks { codes, format, block, scales } => {
                (codes, format, Some(Scales { block, values: scales }))
            }
        };
        match format {
            Fp8Format::E4M3 => multiply::<Codes<true>>(x, codes, scales, y),
            Fp8Format::E5M2 => multiply::<Codes<false>>(x, codes, scales, y),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, matrix, y);
        false
    }
}

/// Numbers of a row from column `from` on.
#[inline(always)]
fn decode(matrix: Rows<'_>, row: usize, k: usize, from: usize, numbers: &mut [f32]) {
    let place = row * k + from..row * k + from + numbers.len();
    match matrix {
        Rows::Bf16(values) => convert(&values[place], numbers),
        Rows::F16(values) => convert(&values[place], numbers),
        Rows::Codes(codes, format) => decode_codes(&codes[place], format, numbers),
        Rows::Blocks { codes, format, block: [rows, columns], scales } => {
            decode_codes(&codes[place], format, numbers);
            let scales = &scales[row / rows * k.div_ceil(columns)..];
            let (mut column, mut rest) = (from, numbers);
            while !rest.is_empty() {
                let count = (columns - column % columns).min(rest.len());
                let (now, later) = rest.split_at_mut(count);
                let scale = scales[column / columns];
                now.iter_mut().for_each(|x| *x *= scale);
                (rest, column) = (later, column + count);
            }
        }
    }
}

/// Numbers as f32.
#[inline(always)]
fn convert<S: Source>(values: &[S], numbers: &mut [f32]) {
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = value.to_f32();
    }
}

/// Asks for what is decoded soon: the same while of a row among the next ones.
fn ask(matrix: Rows<'_>, row: usize, k: usize, from: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::row::prefetch;
        let (place, count) = (row * k + from, DEPTH.min(k - from));
        match matrix {
            Rows::Bf16(values) => prefetch(values.as_ptr().wrapping_add(place), count),
            Rows::F16(values) => prefetch(values.as_ptr().wrapping_add(place), count),
            Rows::Codes(codes, _) | Rows::Blocks { codes, .. } => {
                prefetch(codes.as_ptr().wrapping_add(place), count);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (matrix, row, k, from);
}

/// Numbers of codes, by vector instructions where there are.
fn decode_codes(codes: &[u8], format: Fp8Format, numbers: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::row;
        let is_done = match format {
            Fp8Format::E4M3 => row::decode::<true>(codes, numbers),
            Fp8Format::E5M2 => row::decode::<false>(codes, numbers),
        };
        if is_done {
            return;
        }
    }
    for (code, number) in codes.iter().zip(numbers) {
        *number = element::decode(*code, format);
    }
}

/// Adds the products of all rows of `x` `[M][depth]` with decoded ones to `sums` `[M][HEIGHT]`.
#[inline(always)]
fn multiply<A: Simd>(
    simd: A,
    x: &[f32],
    decoded: &[[f32; DEPTH]],
    depth: usize,
    sums: &mut [A::f32s],
) {
    let groups = x.chunks(TILE[1] * depth).zip(sums.chunks_mut(TILE[1] * HEIGHT));
    for (x, sums) in groups {
        let mut first = 0;
        while first < decoded.len() {
            let rows = &decoded[first..];
            let many = rows.len() >= TILE[0];
            let sums = &mut sums[first..];
            match (many, x.len() / depth) {
                (true, 1) => tile::<A, 4, 1>(simd, x, rows, depth, sums),
                (true, _) => tile::<A, 4, 2>(simd, x, rows, depth, sums),
                (false, 1) => tile::<A, 1, 1>(simd, x, rows, depth, sums),
                (false, _) => tile::<A, 1, 2>(simd, x, rows, depth, sums),
            }
            first += if many { TILE[0] } else { 1 };
        }
    }
}

/// `R` decoded rows and `P` rows of `x`.
#[inline(always)]
fn tile<A: Simd, const R: usize, const P: usize>(
    simd: A,
    x: &[f32],
    rows: &[[f32; DEPTH]],
    depth: usize,
    sums: &mut [A::f32s],
) {
    let vectors = depth / A::F32_LANES;
    let x: [&[A::f32s]; P] =
        core::array::from_fn(|p| &A::as_simd_f32s(&x[p * depth..][..depth]).0[..vectors]);
    let rows: [&[A::f32s]; R] = core::array::from_fn(|r| &A::as_simd_f32s(&rows[r]).0[..vectors]);
    let mut totals: [[A::f32s; R]; P] =
        core::array::from_fn(|p| core::array::from_fn(|r| sums[p * HEIGHT + r]));
    for vector in 0..vectors {
        for (totals, x) in totals.iter_mut().zip(x) {
            for (total, row) in totals.iter_mut().zip(rows) {
                *total = simd.mul_add_e_f32s(x[vector], row[vector], *total);
            }
        }
    }
    for (p, totals) in totals.into_iter().enumerate() {
        sums[p * HEIGHT..][..R].copy_from_slice(&totals);
    }
}
