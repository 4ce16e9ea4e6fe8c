//! The products of tiles, in f32.
//!
//! The left operand is broadcast, number by number, so it may lie in any way; rows of the right one are vectors. Each sum is taken in the order
//! of K, whatever the vectors: all CPUs with fused multiply-add give the same bits. So they do where there are [`NARROW`] columns or fewer, as while text is
//! generated: then rows or columns of the left operand are the vectors, and sums along its rows are taken in [`LANES`] parts.

use pulp::{Simd, WithSimd};

use super::operand::Rows;

/// Columns up to which a product is narrow.
pub(super) const NARROW: usize = 4;

/// Numbers of a row that are multiplied at once in a narrow product.
const LANES: usize = 16;

/// Rows of its right operand or of its result, at most: heads are not wider.
const LONGEST: usize = 256;

/// A matrix in rows or in columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    strides: [usize; 2],
    scale: f32,
}

impl<'a> From<Rows<'a>> for Matrix<'a> {
    fn from(Rows { values, stride, scale }: Rows<'a>) -> Self {
        Self { values, strides: [stride, 1], scale }
    }
}

impl Matrix<'_> {
    pub(super) fn transpose(self) -> Self {
        let [row, column] = self.strides;
        Self { strides: [column, row], ..self }
    }
}

/// Adds `factor` times the product of two matrices to the output `[m][stride]`, or overwrites it with that.
pub(super) struct Product<'a> {
    /// M, N and K.
    pub(super) size: [usize; 3],
    pub(super) lhs: Matrix<'a>,
    pub(super) rhs: Rows<'a>,
    pub(super) factor: f32,
    pub(super) output: (&'a mut [f32], usize),
    pub(super) accumulate: bool,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { size: [m, n, k], lhs, rhs, factor, output: (output, stride), accumulate } = self;
        assert!(m > 0 && n > 0 && k > 0);
        let [row, column] = lhs.strides;
        assert!((m - 1) * row + (k - 1) * column < lhs.values.len());
        assert!((k - 1) * rhs.stride + n <= rhs.values.len());
        assert!((m - 1) * stride + n <= output.len() && n <= stride);
        let strip = Strip {
            k,
            lhs: lhs.values.as_ptr(),
            lhs_strides: lhs.strides,
            rhs: rhs.values.as_ptr(),
            rhs_stride: rhs.stride,
            factor: factor * lhs.scale * rhs.scale,
            output: output.as_mut_ptr(),
            stride,
            accumulate,
        };
        let factor = strip.factor;
        let narrow = n <= NARROW && m.max(k) <= LONGEST;
        if narrow && column == 1 {
            let rows = (0..m).map(|index| &lhs.values[index * row..][..k]);
            let rows = rows.zip(output.chunks_mut(stride));
            return match n {
                1 => dots::<1>(rows, rhs, k, factor, accumulate),
                2 => dots::<2>(rows, rhs, k, factor, accumulate),
                3 => dots::<3>(rows, rhs, k, factor, accumulate),
                _ => dots::<NARROW>(rows, rhs, k, factor, accumulate),
            };
        }
        if narrow && row == 1 {
            let columns = (0..k).map(|index| &lhs.values[index * column..][..m]);
            let rows = output.chunks_mut(stride).take(m);
            return match n {
                1 => combine::<1>(columns, rhs, factor, rows, accumulate),
                2 => combine::<2>(columns, rhs, factor, rows, accumulate),
                3 => combine::<3>(columns, rhs, factor, rows, accumulate),
                _ => combine::<NARROW>(columns, rhs, factor, rows, accumulate),
            };
        }
        let lanes = S::F32_LANES;
        let mut start = 0;
        // SAFETY: the last elements of each matrix are inside of its slice, as asserted, and so are whole vectors of columns below N.
        unsafe {
            while start + 2 * lanes <= n {
                strip.rows::<S, 2>(simd, m, start, lanes);
                start += 2 * lanes;
            }
            if start + lanes <= n {
                strip.rows::<S, 1>(simd, m, start, lanes);
                start += lanes;
            }
            if start < n {
                strip.rows::<S, 1>(simd, m, start, n - start);
            }
        }
    }
}

/// The products of rows with few columns, each with what it is written to.
#[inline(always)]
fn dots<'a, const N: usize>(
    rows: impl Iterator<Item = (&'a [f32], &'a mut [f32])>,
    rhs: Rows<'_>,
    k: usize,
    factor: f32,
    accumulate: bool,
) {
    let mut columns = [[0f32; LONGEST]; N];
    for index in 0..k {
        for (column, x) in columns.iter_mut().zip(&rhs.values[index * rhs.stride..][..N]) {
            column[index] = *x;
        }
    }
    for (row, output) in rows {
        let mut sums = [[0f32; LANES]; N];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for (index, chunk) in chunks.iter().enumerate() {
            for (column, sums) in columns.iter().zip(&mut sums) {
                let column = &column[index * LANES..][..LANES];
                for ((sum, x), y) in sums.iter_mut().zip(chunk).zip(column) {
                    *sum = x.mul_add(*y, *sum);
                }
            }
        }
        for (column, sums) in columns.iter().zip(&mut sums) {
            let column = &column[row.len() - rest.len()..];
            for ((sum, x), y) in sums.iter_mut().zip(rest).zip(column) {
                *sum = x.mul_add(*y, *sum);
            }
        }
        for (y, mut sums) in output.iter_mut().zip(sums) {
            let mut half = LANES / 2;
            while half > 0 {
                let (first, second) = sums.split_at_mut(half);
                for (x, y) in first.iter_mut().zip(&second[..half]) {
                    *x += *y;
                }
                half /= 2;
            }
            *y = sums[0].mul_add(factor, if accumulate { *y } else { 0.0 });
        }
    }
}

/// The products of a matrix, given in columns, with few columns.
#[inline(always)]
fn combine<'a, const N: usize>(
    columns: impl Iterator<Item = &'a [f32]>,
    rhs: Rows<'_>,
    factor: f32,
    rows: impl Iterator<Item = &'a mut [f32]>,
    accumulate: bool,
) {
    let mut sums = [[0f32; LONGEST]; N];
    for (index, column) in columns.enumerate() {
        let factors = &rhs.values[index * rhs.stride..][..N];
        for (sums, factor) in sums.iter_mut().zip(factors) {
            for (sum, x) in sums.iter_mut().zip(column) {
                *sum = x.mul_add(*factor, *sum);
            }
        }
    }
    for (index, row) in rows.enumerate() {
        for (y, sums) in row.iter_mut().zip(&sums) {
            *y = sums[index].mul_add(factor, if accumulate { *y } else { 0.0 });
        }
    }
}

/// Pointers to matrices that fit each other.
#[derive(Clone, Copy)]
struct Strip {
    k: usize,
    lhs: *const f32,
    lhs_strides: [usize; 2],
    rhs: *const f32,
    rhs_stride: usize,
    factor: f32,
    output: *mut f32,
    stride: usize,
    accumulate: bool,
}

impl Strip {
    /// All rows of `V` vectors of columns, of which the last one has `width` numbers.
    ///
    /// # Safety
    /// `m` rows and columns from `start` on, as many as there are in the vectors, must be inside of the matrices.
    #[inline(always)]
    unsafe fn rows<S: Simd, const V: usize>(self, simd: S, m: usize, start: usize, width: usize) {
        // As many sums as registers hold beside the vectors that are multiplied.
        const MANY: usize = 8;
        const FEW: usize = 6;
        let mut row = 0;
        // SAFETY: rows below `m` and the caller's columns.
        unsafe {
            if S::REGISTER_COUNT >= 32 {
                while row + MANY <= m {
                    self.block::<S, V, MANY>(simd, row, start, width);
                    row += MANY;
                }
            }
            while row + FEW <= m {
                self.block::<S, V, FEW>(simd, row, start, width);
                row += FEW;
            }
            if row + 4 <= m {
                self.block::<S, V, 4>(simd, row, start, width);
                row += 4;
            }
            while row < m {
                self.block::<S, V, 1>(simd, row, start, width);
                row += 1;
            }
        }
    }

    /// `R` rows of `V` vectors of columns.
    ///
    /// # Safety
    /// They must be inside of the matrices.
    #[inline(always)]
    unsafe fn block<S: Simd, const V: usize, const R: usize>(
        self,
        simd: S,
        row: usize,
        start: usize,
        width: usize,
    ) {
        let lanes = S::F32_LANES;
        let whole = width == lanes;
        let [lhs_row, lhs_column] = self.lhs_strides;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        // SAFETY: all of them are inside of the matrices, as the caller promises.
        unsafe {
            let lhs = self.lhs.add(row * lhs_row);
            let rhs = self.rhs.add(start);
            for k in 0..self.k {
                let mut vectors = [simd.splat_f32s(0.0); V];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = load(simd, rhs.add(k * self.rhs_stride + v * lanes), width, whole);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat_f32s(*lhs.add(r * lhs_row + k * lhs_column));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = simd.mul_add_e_f32s(factor, vector, *sum);
                    }
                }
            }
            let factor = simd.splat_f32s(self.factor);
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    let output = self.output.add((row + r) * self.stride + start + v * lanes);
                    let before = match self.accumulate {
                        true => load(simd, output, width, whole),
                        false => simd.splat_f32s(0.0),
                    };
                    let sum = simd.mul_add_e_f32s(sum, factor, before);
                    match whole {
                        true => output.cast::<S::f32s>().write_unaligned(sum),
                        false => simd.partial_store_f32s(
                            core::slice::from_raw_parts_mut(output, width),
                            sum,
                        ),
                    }
                }
            }
        }
    }
}

/// # Safety
/// `width` numbers must be there; as many as a vector has where it is whole.
#[inline(always)]
unsafe fn load<S: Simd>(simd: S, start: *const f32, width: usize, whole: bool) -> S::f32s {
    // SAFETY: the caller's promise.
    unsafe {
        match whole {
            true => start.cast::<S::f32s>().read_unaligned(),
            false => simd.partial_load_f32s(core::slice::from_raw_parts(start, width)),
        }
    }
}
