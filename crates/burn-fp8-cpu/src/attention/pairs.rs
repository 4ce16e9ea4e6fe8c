//! The products of tiles on AVX-512 BF16, which multiplies pairs of bf16 numbers and adds both products to one f32 sum.
//!
//! A word is a pair: two numbers that are neighbours along K. Sums are taken in the order of K, two products at a time.
//!
//! | [`Layout`] | of rows `[count][width]`         | words                                            |
//! |------------|----------------------------------|--------------------------------------------------|
//! | `Rows`     | a left operand, K is the width   | `[width / 32][TILE][16]`                         |
//! | `Pairs`    | K is the count: a right operand, or, transposed, a left one | `[count / 2][width]`  |
//! | `Columns`  | transposed, a right operand, K is the width | `[width / 2][TILE]`                   |
//!
//! Widths are padded to whole vectors, and K to whole words, with zeros. A unit flushes subnormal numbers to zero.
#![allow(unsafe_code, reason = "vector instructions")]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "nothing is packed there"))]

use super::{AttentionPrecision, TILE, padded};
#[cfg(target_arch = "x86_64")]
use crate::pack::words::{self, Lines};
use crate::unit::Unit;

/// Words of a row that lie together in [`Layout::Rows`].
const STEP: usize = 16;

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
            Self::Rows => width.div_ceil(2 * STEP) * TILE * STEP,
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
    /// What has packed them: the machine has the instructions.
    pub(super) pairing: Pairing,
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
        (unit.for_attention() != Unit::Portable).then_some(Self(()))
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
        let (size, words) = ([count, width], words.as_mut_ptr());
        // SAFETY: the machine has the instructions; rows and words are as long as they must be.
        unsafe {
            match layout {
                Layout::Rows => words::rows(lines, size, words, TILE * STEP),
                Layout::Pairs => words::pairs(lines, size, words, padded(width)),
                Layout::Columns => words::columns(lines, size, words, TILE),
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn pack(self, _: Layout, _: (&[f32], usize), _: [usize; 2], _: &mut [u32]) {
        unreachable!("other machines have no such unit")
    }
}

/// Adds `factor` times the product `[m, k] · [k, n]` to the output `[m][stride]`, or overwrites it with that; columns up to whole vectors.
#[cfg(target_arch = "x86_64")]
pub(super) fn multiply(
    [m, n, k]: [usize; 3],
    [lhs, rhs]: [Words<'_>; 2],
    factor: f32,
    (output, stride): (&mut [f32], usize),
    accumulate: bool,
) {
    let Pairing(()) = lhs.pairing;
    let (n, pairs) = (padded(n), k.div_ceil(2));
    assert!(m > 0 && n > 0 && k > 0);
    assert!(rhs.layout != Layout::Rows && (pairs - 1) * rhs.stride + n <= rhs.words.len());
    let last = match lhs.layout {
        Layout::Rows => ((pairs - 1) / STEP * TILE + m - 1) * STEP + (pairs - 1) % STEP,
        _ => (pairs - 1) * lhs.stride + m - 1,
    };
    assert!(last < lhs.words.len() && (lhs.layout != Layout::Rows || m <= TILE));
    assert!((m - 1) * stride + n <= output.len() && n <= stride);
    let product = avx512::PairsProduct {
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
    // SAFETY: there is a pairing: the machine has the instructions; the last elements of each matrix are inside of its slice, as asserted.
    unsafe {
        match lhs.layout {
            Layout::Rows => product.run::<STEP>([m, n]),
            _ => product.run::<1>([m, n]),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn multiply(
    _: [usize; 3],
    [Words { pairing: Pairing(()), .. }, _]: [Words<'_>; 2],
    _: f32,
    _: (&mut [f32], usize),
    _: bool,
) {
    unreachable!("other machines have no such unit")
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::*;

    use super::{STEP, TILE};
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
