//! The products of tiles on AVX-512 BF16, which multiplies pairs of bf16 numbers and adds both products to one f32 sum, or on AMX's tiles, which do so for
//! 16 rows and 16 columns at once.
//!
//! A word is a pair: two numbers that are neighbours along K. Dot products are summed in the order of K, two products at a time, those of AMX 32 at a time.
//!
//! | [`Layout`]   | of rows `[count][width]`                    | words                                                |
//! |--------------|---------------------------------------------|------------------------------------------------------|
//! | `Rows`       | a left operand, K is the width              | `[width / 32][TILE][16]`                             |
//! | `Transposed` | transposed, a left operand, K is the count  | `[count / 32][width][16]` for tiles, else as `Pairs` |
//! | `Pairs`      | a right operand, K is the count             | `[count / 2][width]`                                 |
//! | `Columns`    | transposed, a right operand, K is the width | `[width / 2][TILE]`                                  |
//!
//! Widths are padded to whole vectors, and K with zeros: to 32 numbers where tiles read them, else to whole words. A unit flushes subnormal numbers to zero.
#![allow(unsafe_code, reason = "vector instructions")]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "nothing is packed there"))]

use super::{AttentionPrecision, TILE, padded};
#[cfg(target_arch = "x86_64")]
pub(super) use crate::kernel::amx::Amx;
#[cfg(target_arch = "x86_64")]
use crate::kernel::tiles::Tiles;
#[cfg(target_arch = "x86_64")]
use crate::pack::words::{self, Lines};
use crate::unit::Unit;

/// Words of a row that lie together in left operands: 32 of K.
const STEP: usize = 16;

/// Other machines have none.
#[cfg(not(target_arch = "x86_64"))]
pub(super) enum Amx {}

/// How the words of some rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Rows,
    Transposed,
    Pairs,
    Columns,
}

impl Layout {
    /// Words of a tile of this width.
    pub(super) fn words(self, width: usize) -> usize {
        match self {
            Self::Rows | Self::Columns => width.div_ceil(2 * STEP) * STEP * TILE,
            Self::Transposed | Self::Pairs => TILE / 2 * padded(width),
        }
    }

    /// From a word of a right operand to the next along K; of a left one to that 32 numbers of K further.
    pub(super) fn stride(self, width: usize) -> usize {
        match self {
            Self::Rows => TILE * STEP,
            Self::Transposed => padded(width) * STEP,
            Self::Pairs => padded(width),
            Self::Columns => TILE,
        }
    }
}

/// An operand in words, times a scale.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub(super) words: &'a [u32],
    pub(super) layout: Layout,
    /// That of the layout.
    pub(super) stride: usize,
    pub(super) scale: f32,
    /// What has packed them: the machine has the instructions.
    pub(super) pairing: Pairing,
}

/// A CPU with AVX-512 F, BW and BF16; with AMX, too, where its tiles multiply.
#[derive(Clone, Copy)]
pub(super) struct Pairing {
    on_tiles: bool,
}

impl Pairing {
    /// That of a unit which multiplies bf16 numbers, where operands are rounded to such.
    ///
    /// # Panics
    /// If the machine lacks the unit.
    #[track_caller]
    pub(super) fn find(unit: Unit, precision: AttentionPrecision) -> Option<Self> {
        if unit == Unit::Portable || precision == AttentionPrecision::High {
            return None;
        }
        unit.require().unwrap_or_else(|error| panic!("{error}"));
        Some(Self { on_tiles: unit == Unit::AmxBf16 })
    }

    /// The tiles of this thread, if they multiply.
    ///
    /// # Safety
    /// While they are alive, nothing else on this thread may use tiles.
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn tiles(self) -> Option<Amx> {
        // SAFETY: `find` has found AMX, with permission and AVX-512; the caller's promise.
        self.on_tiles.then(|| unsafe { Amx::new() })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) unsafe fn tiles(self) -> Option<Amx> {
        None
    }

    /// Rounds rows of numbers, as far apart as the stride says, to bf16, and lays them out as words.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pack(
        self,
        layout: Layout,
        (values, stride): (&[f32], usize),
        [count, width]: [usize; 2],
        words: &mut [u32],
    ) {
        assert!((1..=TILE).contains(&count) && width > 0 && words.len() >= layout.words(width));
        assert!((count - 1) * stride + width <= values.len());
        let lines = Lines { start: values.as_ptr(), stride };
        let (size, start) = ([count, width], words.as_mut_ptr());
        // SAFETY: the machine has the instructions; rows and words are as long as they must be.
        unsafe {
            match layout {
                Layout::Rows => words::rows(lines, size, start, TILE * STEP),
                Layout::Transposed if self.on_tiles => {
                    words::rows_of_transpose(lines, size, start, padded(width) * STEP);
                }
                Layout::Transposed | Layout::Pairs => {
                    words::pairs(lines, size, start, padded(width));
                }
                Layout::Columns => words::columns(lines, size, start, TILE),
            }
        }
        // Rows are padded as they are packed. Of others the rest is what was there before.
        let (pairs, stride) = match layout {
            Layout::Pairs => (count.div_ceil(2), padded(width)),
            Layout::Columns => (width.div_ceil(2), TILE),
            Layout::Rows | Layout::Transposed => return,
        };
        words[pairs * stride..pairs.next_multiple_of(STEP) * stride].fill(0);
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn pack(self, _: Layout, _: (&[f32], usize), _: [usize; 2], _: &mut [u32]) {
        unreachable!("other machines have no such unit")
    }
}

/// Adds `factor` times the product `[m, k] · [k, n]` to the output `[m][stride]`, or overwrites it with that; columns up to whole vectors. On tiles where
/// there are some.
#[cfg(target_arch = "x86_64")]
pub(super) fn multiply<T: Tiles>(
    tiles: Option<&mut T>,
    [m, n, k]: [usize; 3],
    [lhs, rhs]: [Words<'_>; 2],
    factor: f32,
    (output, stride): (&mut [f32], usize),
    accumulate: bool,
) {
    assert!(tiles.is_some() == lhs.pairing.on_tiles);
    let (n, steps) = (padded(n), k.div_ceil(2 * STEP));
    assert!(m > 0 && n > 0 && k > 0);
    // Whole tiles are there.
    assert!(padded(m) * STEP <= lhs.stride && steps * lhs.stride <= lhs.words.len());
    assert!(n <= rhs.stride && steps * STEP * rhs.stride <= rhs.words.len());
    assert!((m - 1) * stride + n <= output.len() && n <= stride);
    let factor = factor * lhs.scale * rhs.scale;
    if let Some(tiles) = tiles {
        let (size, output) = ([m, n, steps], (output, stride));
        let product = amx::TilesProduct { tiles, size, lhs, rhs, factor, output, accumulate };
        return crate::unit::arch().dispatch(product);
    }
    let product = avx512::PairsProduct {
        pairs: k.div_ceil(2),
        lhs: lhs.words.as_ptr(),
        lhs_stride: lhs.stride,
        rhs: rhs.words.as_ptr(),
        rhs_stride: rhs.stride,
        factor,
        output: output.as_mut_ptr(),
        stride,
        accumulate,
    };
    // SAFETY: there is a pairing: the machine has the instructions; the last elements of each matrix are inside of its slice, as asserted.
    unsafe {
        match lhs.layout {
            Layout::Transposed => product.run::<1>([m, n]),
            _ => product.run::<STEP>([m, n]),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn multiply(
    _: Option<&mut Amx>,
    _: [usize; 3],
    _: [Words<'_>; 2],
    _: f32,
    _: (&mut [f32], usize),
    _: bool,
) {
    unreachable!("other machines have no such unit")
}

#[cfg(target_arch = "x86_64")]
mod amx {
    use pulp::{Simd, WithSimd};

    use super::{STEP, Words};
    use crate::epilogue::WIDTH;
    use crate::kernel::tiles::{Side, Tiles, block};
    use crate::memory::Line;

    /// Numbers that are added at once.
    const LANES: usize = 16;

    /// A product on tiles; vectors multiply their sums by the factor, and add them.
    pub(super) struct TilesProduct<'a, T> {
        pub(super) tiles: &'a mut T,
        /// M, N in whole tiles, and 32 of K.
        pub(super) size: [usize; 3],
        pub(super) lhs: Words<'a>,
        pub(super) rhs: Words<'a>,
        pub(super) factor: f32,
        pub(super) output: (&'a mut [f32], usize),
        pub(super) accumulate: bool,
    }

    impl<T: Tiles> WithSimd for TilesProduct<'_, T> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self { tiles, size, lhs, rhs, factor, output: (output, stride), accumulate } = self;
            let [m, n, steps] = size;
            let mut lines = [Line([0; 64]); 4 * WIDTH * WIDTH / 64];
            let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut lines);
            for column in (0..n).step_by(WIDTH) {
                let start = rhs.words[column..].as_ptr().cast();
                let step = 4 * STEP * rhs.stride;
                let right = Side { start, stride: 4 * rhs.stride, step };
                for row in (0..m).step_by(WIDTH) {
                    let start = lhs.words[row * STEP..].as_ptr().cast();
                    let left = Side { start, stride: 4 * STEP, step: 4 * lhs.stride };
                    let [rows, columns] = [m - row, n - column].map(|count| count.min(WIDTH));
                    let two = [rows, columns].map(|count| count > WIDTH / 2);
                    // SAFETY: whole tiles of rows and columns are there in each step, as `multiply` has asserted; 32 × 32 sums.
                    unsafe { block(tiles, [left, right], steps, two, sums.as_mut_ptr(), false) };
                    for (row, sums) in (row..row + rows).zip(sums.chunks_exact(WIDTH)) {
                        let output = &mut output[row * stride + column..][..columns];
                        let vectors = output.as_chunks_mut::<LANES>().0;
                        for (output, sums) in vectors.iter_mut().zip(sums.as_chunks::<LANES>().0) {
                            for (y, sum) in output.iter_mut().zip(sums) {
                                *y = sum.mul_add(factor, if accumulate { *y } else { 0.0 });
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::*;

    use super::STEP;
    use crate::pack::words::LANES;

    /// Rows whose sums fit into registers beside two vectors of the right operand: 28 vectors.
    const ROWS: usize = 14;

    /// Pointers to matrices that fit each other.
    #[derive(Clone, Copy)]
    pub(super) struct PairsProduct {
        pub(super) pairs: usize,
        pub(super) lhs: *const u32,
        pub(super) lhs_stride: usize,
        pub(super) rhs: *const u32,
        pub(super) rhs_stride: usize,
        pub(super) factor: f32,
        pub(super) output: *mut f32,
        pub(super) stride: usize,
        pub(super) accumulate: bool,
    }

    impl PairsProduct {
        /// `ROW` words lie between rows of the left operand: those of a step, or one.
        ///
        /// # Safety
        /// The CPU must have the instructions; `m` rows and `n` columns, whole vectors, must be inside of the matrices.
        #[target_feature(enable = "avx512f,avx512bf16")]
        pub(super) unsafe fn run<const ROW: usize>(self, [m, n]: [usize; 2]) {
            // Blocks of about the same height: a low one would wait for its own sums.
            let height = m.div_ceil(m.div_ceil(ROWS));
            for column in (0..n).step_by(2 * LANES) {
                for row in (0..m).step_by(height) {
                    let rows = height.min(m - row);
                    // SAFETY: rows below `m`, whole vectors of columns below `n`.
                    unsafe {
                        match column + LANES < n {
                            true => self.rows::<ROW, 2>(rows, row, column),
                            false => self.rows::<ROW, 1>(rows, row, column),
                        }
                    }
                }
            }
        }

        /// # Safety
        /// As for a block.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn rows<const ROW: usize, const V: usize>(
            self,
            rows: usize,
            row: usize,
            column: usize,
        ) {
            macro_rules! by_rows {
                ($($rows:literal)*) => {
                    match rows {
                        // SAFETY: the caller's promise.
                        $($rows => unsafe { self.block::<ROW, V, $rows>(row, column) },)*
                        rows => unreachable!("{rows} rows in a block"),
                    }
                };
            }
            by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }

        /// `R` rows of `V` vectors of columns.
        ///
        /// # Safety
        /// The CPU must have the instructions; they must be inside of the matrices.
        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn block<const ROW: usize, const V: usize, const R: usize>(
            self,
            row: usize,
            column: usize,
        ) {
            let mut sums = [[_mm512_setzero_ps(); V]; R];
            // From a word to the next along K.
            let next = if ROW == 1 { self.lhs_stride / STEP } else { 1 };
            // SAFETY: all of them are inside of the matrices, as the caller promises; all bit patterns are bf16 numbers.
            unsafe {
                let mut rhs = self.rhs.add(column);
                for start in (0..self.pairs).step_by(STEP) {
                    let mut lhs = self.lhs.add(row * ROW + start / STEP * self.lhs_stride);
                    for _ in start..self.pairs.min(start + STEP) {
                        let vectors: [__m512bh; V] = core::array::from_fn(|v| {
                            rhs.add(v * LANES).cast::<__m512bh>().read_unaligned()
                        });
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let x = _mm512_set1_epi32(*lhs.add(r * ROW) as i32);
                            let x = core::mem::transmute::<__m512i, __m512bh>(x);
                            for (sum, vector) in sums.iter_mut().zip(vectors) {
                                *sum = _mm512_dpbf16_ps(*sum, x, vector);
                            }
                        }
                        lhs = lhs.wrapping_add(next);
                        rhs = rhs.wrapping_add(self.rhs_stride);
                    }
                }
                let factor = _mm512_set1_ps(self.factor);
                for (r, sums) in sums.into_iter().enumerate() {
                    for (v, sum) in sums.into_iter().enumerate() {
                        let output = self.output.add((row + r) * self.stride + column + v * LANES);
                        let before = match self.accumulate {
                            true => _mm512_loadu_ps(output),
                            false => _mm512_setzero_ps(),
                        };
                        _mm512_storeu_ps(output, _mm512_fmadd_ps(sum, factor, before));
                    }
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use half::bf16;

    use super::*;
    use crate::kernel::software::Software;
    use crate::unit::has_avx512;

    const LEFT: [Layout; 2] = [Layout::Rows, Layout::Transposed];
    const RIGHT: [Layout; 2] = [Layout::Pairs, Layout::Columns];

    /// Small integers, whose sums are exact.
    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|index| (index * 37 % 15) as f32 - 7.0).collect()
    }

    /// Rows and width of what is packed for an operand with so many rows or columns and so much of K.
    fn shape(layout: Layout, other: usize, k: usize) -> [usize; 2] {
        if matches!(layout, Layout::Rows | Layout::Columns) { [other, k] } else { [k, other] }
    }

    /// What [`Pairing::pack`] makes of rows, number by number. NaN is left where it need not write.
    fn packed(
        pairing: Pairing,
        layout: Layout,
        values: &[f32],
        size @ [count, width]: [usize; 2],
    ) -> Vec<u32> {
        let mut halves = vec![u16::MAX; 2 * layout.words(width)];
        let stride = layout.stride(width);
        let [others, k] = if shape(layout, 1, 0)[0] == 1 { size } else { [width, count] };
        let as_pairs = layout == Layout::Transposed && !pairing.on_tiles;
        let others = if LEFT.contains(&layout) { others } else { padded(others) };
        let k = k.next_multiple_of(if as_pairs { 2 } else { 2 * STEP });
        let all = (0..k).flat_map(|k| (0..others).map(move |o| (k, o)));
        for (k, other) in all {
            let [row, column] = shape(layout, other, k);
            let is_there = row < count && column < width;
            let number = if is_there { values[row * width + column] } else { 0.0 };
            let word = match layout {
                _ if as_pairs => k / 2 * (stride / STEP) + other,
                Layout::Pairs | Layout::Columns => k / 2 * stride + other,
                _ => k / (2 * STEP) * stride + other * STEP + k / 2 % STEP,
            };
            halves[2 * word + k % 2] = bf16::from_f32(number).to_bits();
        }
        halves.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16).collect()
    }

    /// Whether there can be as many rows, and as wide ones.
    fn fits([count, width]: [usize; 2]) -> bool {
        count <= TILE && width <= 256
    }

    const COUNTS: [usize; 9] = [1, 3, 16, 17, 33, 63, 64, 80, 256];

    #[test]
    fn words_are_packed_as_number_by_number() {
        if !has_avx512() {
            burn_fp8_test_support::skip("no AVX-512 with VBMI and BF16");
            return;
        }
        let sizes = COUNTS.into_iter().flat_map(|count| COUNTS.map(|width| [count, width]));
        let layouts = LEFT.into_iter().chain(RIGHT);
        let all = layouts.flat_map(|layout| sizes.clone().map(move |size| (layout, size)));
        for (layout, size @ [count, width]) in all.filter(|(_, size)| fits(*size)) {
            let values = numbers(count * width);
            for pairing in [true, false].map(|on_tiles| Pairing { on_tiles }) {
                let expected = packed(pairing, layout, &values, size);
                let mut words = vec![u32::MAX; expected.len()];
                pairing.pack(layout, (&values, width), size, &mut words);
                // What need not be written may be.
                let same = words.iter().zip(&expected).all(|(x, y)| x == y || *y == u32::MAX);
                assert!(same, "{layout:?} {size:?}");
            }
        }
    }

    /// Every layout on either side, whole tiles and parts of them; beside NaN, which must not come in.
    fn products_are_exact<T: Tiles>(mut tiles: Option<T>) {
        let pairing = Pairing { on_tiles: tiles.is_some() };
        let layouts = LEFT.into_iter().flat_map(|left| RIGHT.map(|right| [left, right]));
        let sizes = COUNTS.into_iter().flat_map(|m| COUNTS.map(|n| [m, n]));
        let sizes = sizes.flat_map(|[m, n]| COUNTS.map(|k| [m, n, k]));
        let all = layouts.flat_map(|layouts| sizes.clone().map(move |size| (layouts, size)));
        for (layouts @ [left, right], size @ [m, n, k]) in all {
            let shapes = [shape(left, m, k), shape(right, n, k)];
            if !shapes.into_iter().all(fits) || m * n * k > 1 << 18 {
                continue;
            }
            let values = shapes.map(|[count, width]| numbers(count * width));
            let [lhs, rhs] =
                [0, 1].map(|side| packed(pairing, layouts[side], &values[side], shapes[side]));
            let operand = |words, side: usize, scale| {
                let stride = layouts[side].stride(shapes[side][1]);
                Words { words, layout: layouts[side], stride, scale, pairing }
            };
            let operands = [operand(&lhs, 0, 0.5), operand(&rhs, 1, 0.25)];
            let number = |side: usize, other, k| {
                let [row, column] = shape(layouts[side], other, k);
                values[side][row * shapes[side][1] + column]
            };
            let stride = padded(n) + 16;
            for before in [0.0, 3.0] {
                let mut output = vec![3.0; m * stride];
                let to = (&mut *output, stride);
                multiply(tiles.as_mut(), size, operands, 2.0, to, before > 0.0);
                for (at, y) in output.iter().enumerate() {
                    let (row, column) = (at / stride, at % stride);
                    // Up to whole vectors they are anything.
                    if (n..padded(n)).contains(&column) {
                        continue;
                    }
                    let products = (0..k).map(|k| number(0, row, k) * number(1, column, k));
                    let is_there = column < n;
                    let expected =
                        if is_there { before + 0.25 * products.sum::<f32>() } else { 3.0 };
                    assert_eq!(*y, expected, "{size:?} {layouts:?} [{row}, {column}]");
                }
            }
        }
    }

    #[test]
    fn products_are_exact_on_tiles_and_without() {
        products_are_exact(Some(Software::new()));
        if has_avx512() {
            products_are_exact(None::<Software>);
        }
        if Unit::AmxBf16.require().is_ok() {
            // SAFETY: it is there, and permitted; nothing else on this thread uses tiles.
            products_are_exact(Some(unsafe { Amx::new() }));
        }
    }
}
