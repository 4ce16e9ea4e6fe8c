//! The products of tiles on AVX-512 BF16, which multiplies pairs of bf16 numbers and adds both products to one f32 sum.
//!
//! A word is a pair: two numbers that are neighbours along K. Sums are taken in the order of K, two products at a time.
//!
//! | [`Layout`] | of rows `[count][width]`         | words                                            |
//! |------------|----------------------------------|--------------------------------------------------|
//! | `Rows`     | a left operand, K is the width   | `[width / 64][TILE][32]`                         |
//! | `Pairs`    | K is the count: a right operand, or, transposed, a left one | `[count / 2][width]`  |
//! | `Columns`  | transposed, a right operand, K is the width | `[width / 2][TILE]`                   |
//!
//! Widths are padded to whole vectors, and K to whole words, with zeros. A unit flushes subnormal numbers to zero.
#![allow(unsafe_code, reason = "vector instructions")]

use super::product::Rows;
use super::tile::padded;
use super::{AttentionPrecision, TILE};
use crate::unit::Unit;

/// Words of a row that lie together in [`Layout::Rows`].
const STEP: usize = TILE / 2;

/// How the words of some rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Rows,
    Pairs,
    Columns,
}

impl Layout {
    /// Words of a tile of this width.
    pub(super) fn words(self, width: usize) -> usize {
        match self {
            Self::Rows => width.div_ceil(TILE) * TILE * STEP,
            Self::Pairs => TILE / 2 * padded(width),
            Self::Columns => width.div_ceil(2) * TILE,
        }
    }

    /// From a word to the next along K, where rows are not the lines.
    pub(super) fn stride(self, width: usize) -> usize {
        match self {
            Self::Rows => 1,
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
    /// From a word to the next along K.
    pub(super) stride: usize,
    pub(super) scale: f32,
}

/// A CPU with AVX-512 F, BW and BF16.
#[derive(Clone, Copy)]
pub(super) struct Pairing(());

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
        Some(Self(()))
    }

    /// Rounds rows to bf16, and lays them out as words.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pack(
        self,
        layout: Layout,
        rows: Rows<'_>,
        [count, width]: [usize; 2],
        words: &mut [u32],
    ) {
        assert!((1..=TILE).contains(&count) && width > 0 && words.len() >= layout.words(width));
        assert!((count - 1) * rows.stride + width <= rows.values.len());
        // SAFETY: the machine has the instructions; rows and words are as long as they must be.
        unsafe {
            let (rows, words) = ((rows.values.as_ptr(), rows.stride), words.as_mut_ptr());
            match layout {
                Layout::Rows => avx512::pack_rows(rows, [count, width], words),
                Layout::Pairs => avx512::pack_pairs(rows, [count, width], words),
                Layout::Columns => avx512::pack_columns(rows, [count, width], words),
            }
        }
    }

    /// Adds `factor` times the product `[m, k] · [k, n]` to the output `[m][stride]`, or overwrites it with that; columns up to whole vectors.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn multiply(
        self,
        [m, n, k]: [usize; 3],
        [lhs, rhs]: [Words<'_>; 2],
        factor: f32,
        (output, stride): (&mut [f32], usize),
        accumulate: bool,
    ) {
        let (n, pairs) = (padded(n), k.div_ceil(2));
        assert!(m > 0 && n > 0 && k > 0);
        assert!(rhs.layout != Layout::Rows && (pairs - 1) * rhs.stride + n <= rhs.words.len());
        let last = match lhs.layout {
            Layout::Rows => ((pairs - 1) / STEP * TILE + m - 1) * STEP + (pairs - 1) % STEP,
            _ => (pairs - 1) * lhs.stride + m - 1,
        };
        assert!(last < lhs.words.len() && (lhs.layout != Layout::Rows || m <= TILE));
        assert!((m - 1) * stride + n <= output.len() && n <= stride);
        let product = avx512::Product {
            pairs,
            lhs: lhs.words.as_ptr(),
            lhs_stride: lhs.stride,
            rhs: rhs.words.as_ptr(),
            rhs_stride: rhs.stride,
            factor: factor * lhs.scale * rhs.scale,
            output: output.as_mut_ptr(),
            stride,
            accumulate,
        };
        // SAFETY: the machine has the instructions; the last elements of each matrix are inside of its slice, as asserted.
        unsafe {
            match lhs.layout {
                Layout::Rows => product.run::<STEP>([m, n]),
                _ => product.run::<1>([m, n]),
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn pack(self, _: Layout, _: Rows<'_>, _: [usize; 2], _: &mut [u32]) {
        unreachable!("other machines have no such unit")
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn multiply(
        self,
        _: [usize; 3],
        _: [Words<'_>; 2],
        _: f32,
        _: (&mut [f32], usize),
        _: bool,
    ) {
        unreachable!("other machines have no such unit")
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::*;

    use super::{STEP, TILE, padded};

    /// Numbers of a vector of f32, words of a vector.
    const LANES: usize = 16;

    /// Rows whose sums fit into registers beside two vectors of the right operand: 28 vectors.
    const ROWS: usize = 14;

    /// Loads up to 16 numbers; zeros instead of those that are not there.
    ///
    /// # Safety
    /// `count` numbers, at most 16 of them, must be there.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(start: *const f32, count: usize) -> __m512 {
        let mask = (1u32 << count.min(LANES)) - 1;
        // SAFETY: the mask hides what is not there, which may be outside of the memory.
        unsafe { _mm512_maskz_loadu_ps(mask as __mmask16, start) }
    }

    /// 32 numbers of a row as 16 words, zeros beyond `count`.
    ///
    /// # Safety
    /// `count` numbers, or 32 of them, must be there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn row(start: *const f32, count: usize) -> __m512i {
        // SAFETY: as the caller promises; masked loads may begin beyond the numbers.
        let [first, second] = unsafe {
            [load(start, count), load(start.wrapping_add(LANES), count.saturating_sub(LANES))]
        };
        // SAFETY: vectors of bf16 and of words have the same bits.
        unsafe { core::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) }
    }

    /// # Safety
    /// The CPU must have the instructions; `count` rows of `width` numbers and the words of the layout must be there.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn pack_rows(
        (rows, stride): (*const f32, usize),
        [count, width]: [usize; 2],
        words: *mut u32,
    ) {
        for step in 0..width.div_ceil(TILE) {
            for index in 0..count {
                for half in 0..2 {
                    let column = step * TILE + half * 2 * LANES;
                    // SAFETY: the row's numbers from the column on; the place of the row in the step.
                    unsafe {
                        let numbers = rows.add(index * stride).wrapping_add(column);
                        let out = words.add((step * TILE + index) * STEP + half * LANES);
                        let row = row(numbers, width.saturating_sub(column));
                        _mm512_storeu_si512(out.cast(), row);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn pack_pairs(
        (rows, stride): (*const f32, usize),
        [count, width]: [usize; 2],
        words: *mut u32,
    ) {
        // Number `i` of the first row, then of the second.
        let order: [u16; 32] = core::array::from_fn(|i| (i / 2 + i % 2 * 16) as u16);
        // SAFETY: 64 bytes are read from an array of 64.
        let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
        for pair in 0..count.div_ceil(2) {
            for column in (0..width).step_by(LANES) {
                let there = width - column;
                // SAFETY: rows below `count`, and their numbers from a column of theirs on; whole vectors of words are there.
                unsafe {
                    let first = rows.add(2 * pair * stride + column);
                    let second = match 2 * pair + 1 < count {
                        true => load(first.add(stride), there),
                        false => _mm512_setzero_ps(),
                    };
                    let both = _mm512_cvtne2ps_pbh(second, load(first, there));
                    let both = core::mem::transmute::<__m512bh, __m512i>(both);
                    let out = words.add(pair * padded(width) + column);
                    _mm512_storeu_si512(out.cast(), _mm512_permutexvar_epi16(order, both));
                }
            }
        }
    }

    /// # Safety
    /// As for rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn pack_columns(
        (rows, stride): (*const f32, usize),
        [count, width]: [usize; 2],
        words: *mut u32,
    ) {
        let pairs = width.div_ceil(2);
        for first in (0..TILE).step_by(LANES) {
            for pair in (0..pairs).step_by(LANES) {
                let mut block = [_mm512_setzero_si512(); LANES];
                for (index, words) in block.iter_mut().enumerate().take(count.saturating_sub(first))
                {
                    // SAFETY: a row below `count`, from a column of it on.
                    unsafe {
                        let numbers = rows.add((first + index) * stride + 2 * pair);
                        *words = row(numbers, width - 2 * pair);
                    }
                }
                let block = transpose(block);
                for (index, words_of_pair) in block.into_iter().enumerate().take(pairs - pair) {
                    // SAFETY: a pair of the width, 16 of its rows.
                    unsafe {
                        let out = words.add((pair + index) * TILE + first);
                        _mm512_storeu_si512(out.cast(), words_of_pair);
                    }
                }
            }
        }
    }

    /// Transposes 16 vectors of 16 words.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn transpose(mut rows: [__m512i; LANES]) -> [__m512i; LANES] {
        // Blocks of two words, of four, of eight, and of halves change places.
        for pair in rows.as_chunks_mut::<2>().0 {
            let [a, b] = *pair;
            *pair = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
        }
        for four in rows.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *four;
            *four = [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(b, d),
            ];
        }
        // `rows[4 g + i]` has, in quarter `q`, word `4 q + i` of rows `4 g` to `4 g + 3`.
        let mut out = rows;
        for i in 0..4 {
            let [a, b, c, d] = [rows[i], rows[4 + i], rows[8 + i], rows[12 + i]];
            let even = [
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
            ];
            let odd = [
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
            ];
            out[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even[0], even[1]);
            out[8 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even[0], even[1]);
            out[4 + i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd[0], odd[1]);
            out[12 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd[0], odd[1]);
        }
        out
    }

    /// Pointers to matrices that fit each other.
    #[derive(Clone, Copy)]
    pub(super) struct Product {
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

    impl Product {
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
            // From a word to the next along K, and after a step.
            let next = if ROW == 1 { self.lhs_stride } else { 1 };
            let step = if ROW == 1 { STEP * self.lhs_stride } else { TILE * STEP };
            // SAFETY: all of them are inside of the matrices, as the caller promises; all bit patterns are bf16 numbers.
            unsafe {
                let mut rhs = self.rhs.add(column);
                for start in (0..self.pairs).step_by(STEP) {
                    let mut lhs = self.lhs.add(row * ROW + start / STEP * step);
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
