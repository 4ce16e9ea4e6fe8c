//! Codes whose K goes across lines, as panels: transposed as words of four codes, neighbours along K, and then decoded.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;

use super::decode::{Decoder, in_order, store};
use super::words::{self, LANES};
use crate::epilogue::WIDTH as COLUMNS;
use crate::product::STEP;

/// Codes of a line, or lines, that are transposed at a time.
const CODES: usize = 64;

/// Packs rows, which lie across lines, into left panels of `panel` rows each.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn left(
    decoder: Decoder,
    codes: &[u8],
    stride: usize,
    [rows, depth]: [usize; 2],
    panel: usize,
    panels: &mut [u16],
) {
    assert!(depth == 0 || (depth - 1) * stride + rows <= codes.len());
    let length = depth.next_multiple_of(STEP);
    assert!(rows * length <= panels.len());
    // Where the numbers of a row begin in its panel, and how many rows that has.
    let place = |row: usize| {
        let first = row / panel * panel;
        (first * length + (row - first) * STEP, panel.min(rows - first))
    };
    for row in (0..rows).step_by(CODES) {
        let width = CODES.min(rows - row);
        let mask = u64::MAX >> (CODES - width);
        for k in (0..depth).step_by(CODES) {
            // Word `i` of quarter `q` of vector `v` has four codes of row 16 q + 4 v + i.
            let mut words = [[_mm512_setzero_si512(); LANES]; 4];
            for (four, k) in (k..depth.min(k + CODES)).step_by(4).enumerate() {
                let line = |k: usize| match k < depth {
                    // SAFETY: `width` codes of a line below `depth`, as asserted; the mask hides those beyond.
                    true => unsafe {
                        let start = codes.as_ptr().add(k * stride + row);
                        _mm512_maskz_loadu_epi8(mask, start.cast())
                    },
                    false => _mm512_setzero_si512(),
                };
                let [a, b, c, d] = [line(k), line(k + 1), line(k + 2), line(k + 3)];
                let [low, low_too] = [_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d)];
                let [high, high_too] = [_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d)];
                words[0][four] = _mm512_unpacklo_epi16(low, low_too);
                words[1][four] = _mm512_unpackhi_epi16(low, low_too);
                words[2][four] = _mm512_unpacklo_epi16(high, high_too);
                words[3][four] = _mm512_unpackhi_epi16(high, high_too);
            }
            for (v, words) in words.into_iter().enumerate() {
                for (word, codes) in words::transpose(words).into_iter().enumerate() {
                    let row = row + 16 * (word / 4) + 4 * v + word % 4;
                    if row >= rows {
                        continue;
                    }
                    let (start, height) = place(row);
                    let numbers = decoder.decode(in_order(codes));
                    for (step, numbers) in (k / STEP..length / STEP).zip(numbers) {
                        // SAFETY: a step of the row, whose 32 numbers its panel has room for, as asserted.
                        unsafe { store(panels, start + step * height * STEP, numbers) };
                    }
                }
            }
        }
    }
}

/// Packs at most 32 columns, each a line, into one right panel; zeros beyond them.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn columns(
    decoder: Decoder,
    codes: &[u8],
    stride: usize,
    [depth, width]: [usize; 2],
    panel: &mut [u16],
) {
    assert!(width == 0 || (width - 1) * stride + depth <= codes.len());
    assert!(width <= COLUMNS && depth.next_multiple_of(STEP) * COLUMNS <= panel.len());
    let order = pair_order();
    let pairs = depth.next_multiple_of(STEP) / 2;
    for first in (0..COLUMNS).step_by(LANES) {
        for k in (0..depth).step_by(CODES) {
            let mask = u64::MAX >> (CODES - CODES.min(depth - k));
            let mut lines = [_mm512_setzero_si512(); LANES];
            for (column, line) in (first..width).zip(&mut lines) {
                // SAFETY: codes of a column up to `depth`, as asserted; the mask hides those beyond.
                *line = unsafe {
                    let start = codes.as_ptr().add(column * stride + k);
                    _mm512_maskz_loadu_epi8(mask, start.cast())
                };
            }
            for (pair, codes) in (k / 2..pairs).step_by(2).zip(words::transpose(lines)) {
                // Four codes of each of 16 columns: two pairs.
                let numbers = decoder.decode(_mm512_permutexvar_epi8(order, codes));
                for (pair, numbers) in (pair..).zip(numbers) {
                    // SAFETY: the panel has room for 64 numbers for each pair of the padded depth, which is a multiple of four, as asserted.
                    unsafe { store(panel, 2 * (pair * COLUMNS + first), numbers) };
                }
            }
        }
    }
}

/// Puts the first two bytes of each word where numbers of the first vector are decoded, the others where those of the second are.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_order() -> __m512i {
    let order: [u8; 64] = core::array::from_fn(|i| {
        let (second, place) = (i % 16 / 8, i / 16 * 8 + i % 8);
        (4 * (place / 2) + 2 * second + place % 2) as u8
    });
    // SAFETY: 64 bytes are read from an array of 64.
    unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }
}
