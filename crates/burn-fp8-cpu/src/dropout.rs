//! Masks of dropout, by the generator that [`Dropout`] names.

use crate::unit::arch;
use burn_fp8_core::Dropout;
use pulp::{Scalar, Simd, WithSimd};
use rayon::prelude::*;

/// Decides on 512 neighbouring elements of a tensor in the order of its memory, of which these are the group `index`: see [`Dropout::ROWS`].
pub fn keep_group(
    dropout: Dropout,
    index: u64,
    kept: &mut [[f32; Dropout::ROWS]; Dropout::COLUMNS],
) {
    keep(dropout, index * Dropout::ROWS as u64, 0, kept);
}

/// Writes 1 for the elements of a tensor that are kept and 0 for the others, in the order of its memory, on rayon's current pool.
pub fn keep_elements(dropout: Dropout, kept: &mut [f32]) {
    const GROUPS: usize = 32;
    kept.par_chunks_mut(GROUPS * Dropout::GROUP).enumerate().for_each(|(task, kept)| {
        let mut group = [[0.0; Dropout::ROWS]; Dropout::COLUMNS];
        for (index, kept) in kept.chunks_mut(Dropout::GROUP).enumerate() {
            keep_group(dropout, (task * GROUPS + index) as u64, &mut group);
            kept.copy_from_slice(&group.as_flattened()[..kept.len()]);
        }
    });
}

/// Writes 1 for the elements that are kept and 0 for the others: of `R` rows from `row` on, column by column from `column` on.
///
/// ```
/// use burn_fp8_core::Dropout;
/// use burn_fp8_cpu::dropout::keep;
///
/// // Of rows 100 to 163, columns 0 to 999.
/// let mut kept = [[0.0; 64]; 1000];
/// keep(Dropout::new(0.25, 7).unwrap(), 100, 0, &mut kept);
/// let share = kept.as_flattened().iter().sum::<f32>() / 64_000.0;
/// assert!((0.74..0.76).contains(&share));
/// ```
///
/// # Panics
/// If `column` is no multiple of 8, or a column is 2³⁵ or more.
pub fn keep<const R: usize>(dropout: Dropout, row: u64, column: usize, kept: &mut [[f32; R]]) {
    const COLUMNS: usize = Dropout::COLUMNS;
    assert!(column.is_multiple_of(COLUMNS), "column {column} is no multiple of {COLUMNS}");
    let last = (column + kept.len()).div_ceil(COLUMNS);
    assert!(u32::try_from(last).is_ok(), "there are {} columns", column + kept.len());
    let counter = (column / COLUMNS) as u32;
    arch().dispatch(Decisions { dropout, row, counter, kept });
}

/// A matrix of decisions, compiled for each vector instruction set.
struct Decisions<'a, const R: usize> {
    dropout: Dropout,
    row: u64,
    counter: u32,
    kept: &'a mut [[f32; R]],
}

impl<const R: usize> WithSimd for Decisions<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { dropout, row, counter, kept } = self;
        let (threshold, seed) = (dropout.threshold(), dropout.seed());
        let rows: [u64; R] = core::array::from_fn(|index| row + index as u64);
        let [low, high] = [rows.map(|row| row as u32), rows.map(|row| (row >> 32) as u32)];
        for (counter, columns) in (counter..).zip(kept.chunks_mut(Dropout::COLUMNS)) {
            let mut words = [[counter; R], low, high, [0; R]];
            let words_of_rows = words.each_mut().map(|word| &mut word[..]);
            Philox { words: words_of_rows, seed }.with_simd(simd);
            for (index, column) in columns.iter_mut().enumerate() {
                let shift = index % 2 * 16;
                for (kept, word) in column.iter_mut().zip(&words[index / 2]) {
                    let decision = (word >> shift) & 0xFFFF;
                    *kept = if decision >= threshold { 1.0 } else { 0.0 };
                }
            }
        }
    }
}

/// Philox4x32-10 of counters side by side: puts random words in the place of theirs, of which there are four slices of one length. The seed is the key.
pub(crate) struct Philox<'a> {
    pub words: [&'a mut [u32]; 4],
    pub seed: u64,
}

impl WithSimd for Philox<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { words, seed } = self;
        let [(a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)] = words.map(S::as_mut_simd_u32s);
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            [*a, *b, *c, *d] = philox(simd, [*a, *b, *c, *d], seed);
        }
        for (((a, b), c), d) in a_rest.iter_mut().zip(b_rest).zip(c_rest).zip(d_rest) {
            [*a, *b, *c, *d] = philox(Scalar::new(), [*a, *b, *c, *d], seed);
        }
    }
}

#[inline(always)]
fn philox<S: Simd>(simd: S, words: [S::u32s; 4], seed: u64) -> [S::u32s; 4] {
    let [mut left_key, mut right_key] = [(seed >> 32) as u32, seed as u32];
    let [mut a, mut b, mut c, mut d] = words;
    for _ in 0..10 {
        let (left, left_high) = simd.widening_mul_u32s(a, simd.splat_u32s(0xD251_1F53));
        let (right, right_high) = simd.widening_mul_u32s(c, simd.splat_u32s(0xCD9E_8D57));
        a = simd.xor_u32s(simd.xor_u32s(right_high, b), simd.splat_u32s(right_key));
        c = simd.xor_u32s(simd.xor_u32s(left_high, d), simd.splat_u32s(left_key));
        (b, d) = (right, left);
        right_key = right_key.wrapping_add(0x9E37_79B9);
        left_key = left_key.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123 1.14 (`kat_vectors`, philox4x32 of 10 rounds).
    #[test]
    fn philox_gives_the_known_answers() {
        let cases = [
            ([0; 4], 0, [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 4], u64::MAX, [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                0x299F_31D0_A409_3822,
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (counter, key, expected) in cases {
            // So many that there are vectors, and a rest.
            let mut words = counter.map(|word| [word; 35]);
            let slices = words.each_mut().map(|word| &mut word[..]);
            arch().dispatch(Philox { words: slices, seed: key });
            assert_eq!(words, expected.map(|word: u32| [word; 35]));
        }
    }

    /// Against the generator itself, one element at a time.
    #[test]
    fn decisions_depend_on_seed_row_and_column_alone() {
        let seed = 0x0123_4567_89AB_CDEF;
        let dropout = Dropout::new(0.4, seed).unwrap();
        for row in [0, 9, u64::from(u32::MAX) - 3] {
            for (column, length) in [(0, 40), (8, 1), (640, 13)] {
                let mut kept = vec![[0.5; 16]; length];
                keep(dropout, row, column, &mut kept);
                for (j, kept) in kept.iter().enumerate() {
                    for (i, kept) in kept.iter().enumerate() {
                        let (row, column) = (row + i as u64, column + j);
                        let counter = [column as u32 / 8, row as u32, (row >> 32) as u32, 0];
                        let words = philox(Scalar::new(), counter, seed);
                        let halves = words.map(|word| [word & 0xFFFF, word >> 16]);
                        let decision = halves.as_flattened()[column % 8];
                        assert_eq!(*kept == 1.0, decision >= 26214, "{row} {column}");
                        assert!(*kept == 0.0 || *kept == 1.0);
                    }
                }
            }
        }
    }

    /// Shares of dropped elements, of all and of each column, within five standard deviations.
    #[test]
    fn as_many_are_dropped_as_the_probability_says() {
        const ROWS: usize = 4096;
        for probability in [0.0, 0.1, 0.5, 0.9, 0.999] {
            let dropout = Dropout::new(probability, 11).unwrap();
            let mut kept = vec![[0.0; ROWS]; 200];
            keep(dropout, 0, 0, &mut kept);
            let near = |dropped: f64, count: f64| {
                let deviation = (count * probability * (1.0 - probability)).sqrt();
                (dropped - count * probability).abs() <= 5.0 * deviation + count / 65536.0
            };
            let dropped = |kept: &[f32]| kept.iter().filter(|kept| **kept == 0.0).count() as f64;
            assert!(near(dropped(kept.as_flattened()), (200 * ROWS) as f64));
            assert!(kept.iter().all(|column| near(dropped(column), ROWS as f64)));
            let factor = f64::from(dropout.factor());
            assert!((factor * (1.0 - probability) - 1.0).abs() < 0.01, "{factor}");
        }
    }
}
