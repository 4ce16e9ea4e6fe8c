//! The products of tiles, in f32; [`Multiplier`] runs those in bf16, too.
//!
//! The left operand is broadcast, number by number, so it may lie in any way; rows of the right one are vectors. Each sum is taken in the order
//! of K, whatever the vectors: all CPUs with fused multiply-add give the same bits. So they do where there are [`NARROW`] columns or fewer, as while text is
//! generated: then rows or columns of the left operand are the vectors, and sums along its rows are taken in [`LANES`] parts.

use half::bf16;
use pulp::{Simd, WithSimd};

use super::pairs::{self, Amx, Pairing, Words};
use crate::unit::arch;

/// Columns up to which a product is narrow.
pub(super) const NARROW: usize = 4;

/// Numbers of a row that are multiplied at once in a narrow product.
const LANES: usize = 16;

/// Rows of its right operand or of its result, at most: heads are not wider.
const LONGEST: usize = 256;

/// The left operand of a product.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    F32(LeftMatrix<'a>),
    Pairs(Words<'a>),
}

/// The right operand of a product.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    F32(RightRows<'a>),
    Pairs(Words<'a>),
}

/// What a task multiplies on.
pub(super) struct Multiplier {
    /// Where operands are words.
    pub(super) pairing: Option<Pairing>,
    /// Where tiles multiply them.
    tiles: Option<Amx>,
}

impl Multiplier {
    /// # Safety
    /// While it is alive, nothing else on this thread may use tiles.
    pub(super) unsafe fn new(pairing: Option<Pairing>) -> Self {
        // SAFETY: the caller's promise.
        Self { pairing, tiles: pairing.and_then(|pairing| unsafe { pairing.tiles() }) }
    }

    /// Adds `factor` times the product `[m, k] · [k, n]` to the output `[m][stride]`, or overwrites it with that. Columns of it are computed up to
    /// whole vectors where operands are words.
    pub(super) fn multiply(
        &mut self,
        size: [usize; 3],
        (lhs, rhs): (Left<'_>, Right<'_>),
        factor: f32,
        output: (&mut [f32], usize),
        accumulate: bool,
    ) {
        match (lhs, rhs) {
            (Left::F32(lhs), Right::F32(rhs)) => {
                arch().dispatch(TileProduct { size, lhs, rhs, factor, output, accumulate });
            }
            (Left::Pairs(lhs), Right::Pairs(rhs)) => {
                let tiles = self.tiles.as_mut();
                pairs::multiply(tiles, size, [lhs, rhs], factor, output, accumulate);
            }
            _ => unreachable!("both operands are of one kind"),
        }
    }
}

/// Some rows of a matrix, times a scale.
#[derive(Clone, Copy)]
pub(super) struct RightRows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) scale: f32,
}

/// A matrix in rows or in columns.
#[derive(Clone, Copy)]
pub(super) struct LeftMatrix<'a> {
    numbers: LeftNumbers<'a>,
    strides: [usize; 2],
    scale: f32,
}

/// Its numbers.
#[derive(Clone, Copy)]
enum LeftNumbers<'a> {
    F32(&'a [f32]),
    /// Only in narrow products, which convert them on the way.
    Bf16(&'a [bf16]),
}

impl<'a> From<RightRows<'a>> for LeftMatrix<'a> {
    fn from(RightRows { values, stride, scale }: RightRows<'a>) -> Self {
        Self { numbers: LeftNumbers::F32(values), strides: [stride, 1], scale }
    }
}

impl<'a> LeftMatrix<'a> {
    /// Rows for a narrow product.
    pub(super) fn halves(numbers: &'a [bf16], stride: usize) -> Self {
        Self { numbers: LeftNumbers::Bf16(numbers), strides: [stride, 1], scale: 1.0 }
    }
}

impl LeftMatrix<'_> {
    pub(super) fn transpose(self) -> Self {
        let [row, column] = self.strides;
        Self { strides: [column, row], ..self }
    }
}

/// Adds `factor` times the product of two matrices to the output `[m][stride]`, or overwrites it with that.
struct TileProduct<'a> {
    /// M, N and K.
    size: [usize; 3],
    lhs: LeftMatrix<'a>,
    rhs: RightRows<'a>,
    factor: f32,
    output: (&'a mut [f32], usize),
    accumulate: bool,
}

impl WithSimd for TileProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { size: [m, n, k], lhs, rhs, factor, output: (output, stride), accumulate } = self;
        assert!(m > 0 && n > 0 && k > 0);
        assert!((k - 1) * rhs.stride + n <= rhs.values.len());
        assert!((m - 1) * stride + n <= output.len() && n <= stride);
        let factor = factor * lhs.scale * rhs.scale;
        let LeftMatrix { numbers, strides, .. } = lhs;
        let to = (&mut *output, stride);
        let is_done = n <= NARROW
            && match numbers {
                LeftNumbers::F32(x) => {
                    narrow(simd, [m, n, k], (x, strides), rhs, factor, to, accumulate)
                }
                LeftNumbers::Bf16(x) => {
                    narrow(simd, [m, n, k], (x, strides), rhs, factor, to, accumulate)
                }
            };
        if is_done {
            return;
        }
        let LeftNumbers::F32(numbers) = numbers else {
            panic!("products that are not narrow have f32 operands");
        };
        assert!((m - 1) * strides[0] + (k - 1) * strides[1] < numbers.len());
        let strip = Strip {
            k,
            lhs: numbers.as_ptr(),
            lhs_strides: strides,
            rhs: rhs.values.as_ptr(),
            rhs_stride: rhs.stride,
            factor,
            output: output.as_mut_ptr(),
            stride,
            accumulate,
        };
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

/// A number that is multiplied in f32.
trait Number: Copy {
    fn widened(self) -> f32;
}

impl Number for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// A product of few columns, if the left operand has rows or columns that lie together and are not too long.
#[inline(always)]
fn narrow<S: Simd, E: Number>(
    simd: S,
    [m, n, k]: [usize; 3],
    (numbers, [row, column]): (&[E], [usize; 2]),
    rhs: RightRows<'_>,
    factor: f32,
    (output, stride): (&mut [f32], usize),
    accumulate: bool,
) -> bool {
    if m.max(k) > LONGEST || (row != 1 && column != 1) {
        return false;
    }
    if column == 1 {
        let rows = (0..m).map(|index| &numbers[index * row..][..k]);
        let rows = rows.zip(output.chunks_mut(stride));
        match n {
            1 => dots::<_, _, 1>(simd, rows, rhs, k, factor, accumulate),
            2 => dots::<_, _, 2>(simd, rows, rhs, k, factor, accumulate),
            3 => dots::<_, _, 3>(simd, rows, rhs, k, factor, accumulate),
            _ => dots::<_, _, NARROW>(simd, rows, rhs, k, factor, accumulate),
        }
    } else {
        let columns = (0..k).map(|index| &numbers[index * column..][..m]);
        let rows = output.chunks_mut(stride).take(m);
        match n {
            1 => combine::<_, _, 1>(simd, columns, rhs, factor, rows, accumulate),
            2 => combine::<_, _, 2>(simd, columns, rhs, factor, rows, accumulate),
            3 => combine::<_, _, 3>(simd, columns, rhs, factor, rows, accumulate),
            _ => combine::<_, _, NARROW>(simd, columns, rhs, factor, rows, accumulate),
        }
    }
    true
}

/// Up to as many numbers as there is room for, zeros after them.
#[inline(always)]
fn widened<E: Number, const L: usize>(x: &[E]) -> [f32; L] {
    let mut numbers = [0.0; L];
    match x.first_chunk::<L>() {
        // In whole vectors, as they are loaded again.
        Some(x) => numbers.iter_mut().zip(x).for_each(|(number, x)| *number = x.widened()),
        None => numbers.iter_mut().zip(x).for_each(|(number, x)| *number = x.widened()),
    }
    numbers
}

/// Adds the products of numbers, as many vectors of them as there are, to sums. `y` is one number for all where it is one vector.
#[inline(always)]
fn add_products<S: Simd>(simd: S, sums: &mut [S::f32s], x: &[S::f32s], y: &[S::f32s]) {
    for (part, (sum, x)) in sums.iter_mut().zip(x).enumerate() {
        *sum = simd.mul_add_e_f32s(*x, y[if y.len() == 1 { 0 } else { part }], *sum);
    }
}

/// The products of rows with few columns, each with what it is written to.
#[inline(always)]
fn dots<'a, S: Simd, E: Number + 'a, const N: usize>(
    simd: S,
    rows: impl Iterator<Item = (&'a [E], &'a mut [f32])>,
    rhs: RightRows<'_>,
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
        // As many vectors as have `LANES` numbers.
        let mut sums = [[simd.splat_f32s(0.0); LANES]; N];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for (index, chunk) in chunks.iter().enumerate() {
            let x: [f32; LANES] = widened(chunk);
            for (column, sums) in columns.iter().zip(&mut sums) {
                let y = &column[index * LANES..][..LANES];
                add_products(simd, sums, S::as_simd_f32s(&x).0, S::as_simd_f32s(y).0);
            }
        }
        if !rest.is_empty() {
            let x: [f32; LANES] = widened(rest);
            for (column, sums) in columns.iter().zip(&mut sums) {
                let y = &column[row.len() - rest.len()..][..LANES];
                add_products(simd, sums, S::as_simd_f32s(&x).0, S::as_simd_f32s(y).0);
            }
        }
        for (y, of_vectors) in output.iter_mut().zip(sums) {
            let mut sums = [0f32; LANES];
            S::as_mut_simd_f32s(&mut sums).0.iter_mut().zip(of_vectors).for_each(|(x, y)| *x = y);
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

/// Numbers of columns that are summed at once, in registers.
const STRIP: usize = 64;

/// The products of a matrix, given in columns, with few columns.
#[inline(always)]
fn combine<'a, S: Simd, E: Number + 'a, const N: usize>(
    simd: S,
    columns: impl Iterator<Item = &'a [E]> + Clone,
    rhs: RightRows<'_>,
    factor: f32,
    mut rows: impl Iterator<Item = &'a mut [f32]>,
    accumulate: bool,
) {
    let length = columns.clone().next().map_or(0, <[E]>::len);
    for start in (0..length).step_by(STRIP) {
        let end = length.min(start + STRIP);
        let mut sums = [[simd.splat_f32s(0.0); STRIP]; N];
        for (index, column) in columns.clone().enumerate() {
            let x: [f32; STRIP] = widened(&column[start..end]);
            let factors = &rhs.values[index * rhs.stride..][..N];
            for (sums, factor) in sums.iter_mut().zip(factors) {
                add_products(simd, sums, S::as_simd_f32s(&x).0, &[simd.splat_f32s(*factor)]);
            }
        }
        let mut of_rows = [[0f32; STRIP]; N];
        for (sums, of_vectors) in of_rows.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(sums).0.iter_mut().zip(of_vectors).for_each(|(x, y)| *x = y);
        }
        for (index, row) in rows.by_ref().take(end - start).enumerate() {
            for (y, sums) in row.iter_mut().zip(&of_rows) {
                *y = sums[index].mul_add(factor, if accumulate { *y } else { 0.0 });
            }
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
