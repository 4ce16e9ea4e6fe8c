//! Blocks of codes as panels of bf16, which units multiply.
//!
//! | panel | of       | layout                                                                     |
//! |-------|----------|----------------------------------------------------------------------------|
//! | left  | R rows   | `[K/32][R][32]`: 32 elements of a row, then those of the next row          |
//! | right | 32 columns | `[K/2][32][2]`: two elements of a column, then those of the next column  |
//!
//! K is padded to a multiple of 32 with zeros, columns to a multiple of 32 with anything, rows not at all. AMX loads both as tiles, 16 rows
//! of 64 bytes each; AVX-512 BF16 broadcasts pairs of the left panel against 16 columns of the right one.
//!
//! Codes are decoded 64 at a time by AVX-512's byte permutations.
#![allow(unsafe_code, reason = "vector instructions")]

mod decode;
pub(crate) mod shift;
mod transpose;
pub(crate) mod words;

use core::arch::x86_64::*;
use core::ops::Range;

pub(crate) use self::decode::Decoder;
use self::decode::{in_order, store};
use crate::codes::Codes;
use crate::epilogue::WIDTH as COLUMNS;
use crate::product::STEP;

/// Packs rows of a matrix into left panels of `panel` rows, the last of the rows that are left. What follows the last panel may be overwritten.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(crate) fn left(
    matrix: &Codes<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    panel: usize,
    panels: &mut [u16],
) {
    let stride = matrix.line_stride;
    let length = depth.len().next_multiple_of(STEP);
    assert!(rows.len() * length <= panels.len());
    let decoder = Decoder::new(matrix.format);
    if matrix.transposed {
        let start = &matrix.codes[depth.start * stride + rows.start..];
        return transpose::left(decoder, start, stride, [rows.len(), depth.len()], panel, panels);
    }
    let panels = panels.chunks_mut(panel * length);
    for (first, out) in rows.clone().step_by(panel).zip(panels) {
        let height = panel.min(rows.end - first);
        let start = &matrix.codes[first * stride + depth.start..];
        pack_rows(decoder, start, stride, [height, depth.len()], out);
    }
}

/// Packs rows into one left panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn pack_rows(
    decoder: Decoder,
    codes: &[u8],
    stride: usize,
    [rows, depth]: [usize; 2],
    panel: &mut [u16],
) {
    assert!(rows == 0 || (rows - 1) * stride + depth <= codes.len());
    assert!(rows * depth.next_multiple_of(STEP) <= panel.len());
    for row in 0..rows {
        for k in (0..depth).step_by(2 * STEP) {
            let mask = u64::MAX >> (64 - (depth - k).min(64));
            // SAFETY: row and columns up to `depth` are inside of `codes`, as asserted above; the mask hides bytes beyond.
            let codes = unsafe {
                _mm512_maskz_loadu_epi8(mask, codes.as_ptr().add(row * stride + k).cast())
            };
            let [first, second] = decoder.decode(in_order(codes));
            let step = k / STEP;
            // SAFETY: `step` is a step of `depth`, whose 32 numbers the panel has room for in this row, as asserted above.
            unsafe { store(panel, (step * rows + row) * STEP, first) };
            if k + STEP < depth {
                // SAFETY: as above, for the next step.
                unsafe { store(panel, ((step + 1) * rows + row) * STEP, second) };
            }
        }
    }
}

/// Packs columns of a matrix into right panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(crate) fn right(
    matrix: &Codes<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    panels: &mut [u16],
) {
    let stride = matrix.line_stride;
    let length = depth.len().next_multiple_of(STEP);
    assert!(columns.len().next_multiple_of(COLUMNS) * length <= panels.len());
    let decoder = Decoder::new(matrix.format);
    let panels = panels.chunks_exact_mut(COLUMNS * length);
    for (first, panel) in columns.clone().step_by(COLUMNS).zip(panels) {
        let width = COLUMNS.min(columns.end - first);
        match matrix.transposed {
            false => {
                let start = &matrix.codes[depth.start * stride + first..];
                pack_columns(decoder, start, stride, [depth.len(), width], panel);
            }
            true => {
                let start = &matrix.codes[first * stride + depth.start..];
                transpose::columns(decoder, start, stride, [depth.len(), width], panel);
            }
        }
    }
}

/// Packs at most 32 columns, given row by row, into one right panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn pack_columns(
    decoder: Decoder,
    codes: &[u8],
    stride: usize,
    [depth, width]: [usize; 2],
    panel: &mut [u16],
) {
    assert!(depth == 0 || (depth - 1) * stride + width <= codes.len());
    assert!((1..=COLUMNS).contains(&width));
    assert!(depth.next_multiple_of(STEP) * COLUMNS <= panel.len());
    let order = pair_order();
    let mask = u64::MAX >> (64 - width);
    // SAFETY: for rows below `depth`, `width` bytes are inside of `codes`, as asserted above; the mask hides those beyond.
    let row = |k: usize| match k < depth {
        true => unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().add(k * stride).cast()) },
        false => _mm512_setzero_si512(),
    };
    for k in (0..depth.next_multiple_of(STEP)).step_by(2) {
        // 32 codes of a row, then 32 of the next.
        let both = _mm512_inserti64x4::<1>(row(k), _mm512_castsi512_si256(row(k + 1)));
        let [first, second] = decoder.decode(_mm512_permutexvar_epi8(order, both));
        // SAFETY: the panel has room for 64 numbers for each pair of rows of the padded depth, as asserted above.
        unsafe {
            store(panel, k * COLUMNS, first);
            store(panel, k * COLUMNS + 32, second);
        }
    }
}

/// Pairs bytes `i` and `32 + i`, so that the numbers of pairs 0 to 15 come out in the first vector and those of 16 to 31 in the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_order() -> __m512i {
    let order: [u8; 64] = core::array::from_fn(|i| {
        let (quarter, byte) = (i / 16, i % 16);
        let pair = 16 * (byte / 8) + 4 * quarter + byte % 8 / 2;
        (32 * (byte % 2) + pair) as u8
    });
    // SAFETY: 64 bytes are read from an array of 64.
    unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use burn_fp8_core::Fp8Format;

    use super::*;

    fn codes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i * 97 + i / 256 * 31) as u8).collect()
    }

    /// The bf16 number of an element, 0 outside of the part.
    fn number(matrix: &Codes<'_>, [row, column]: [usize; 2], inside: bool) -> u16 {
        match inside {
            true => (matrix.format.decode(matrix.at(row, column)).to_bits() >> 16) as u16,
            false => 0,
        }
    }

    /// Left panels, element by element.
    fn left_panels(
        matrix: &Codes<'_>,
        rows: Range<usize>,
        depth: Range<usize>,
        panel: usize,
    ) -> Vec<u16> {
        let mut panels = vec![];
        for first in rows.clone().step_by(panel) {
            for step in depth.clone().step_by(STEP) {
                for row in first..rows.end.min(first + panel) {
                    panels.extend(
                        (step..step + STEP).map(|k| number(matrix, [row, k], k < depth.end)),
                    );
                }
            }
        }
        panels
    }

    /// Right panels, element by element.
    fn right_panels(matrix: &Codes<'_>, columns: Range<usize>, depth: Range<usize>) -> Vec<u16> {
        let mut panels = vec![];
        for first in columns.clone().step_by(COLUMNS) {
            for pair in (0..depth.len().next_multiple_of(STEP)).step_by(2) {
                for column in first..first + COLUMNS {
                    panels.extend((depth.start + pair..).take(2).map(|k| {
                        number(matrix, [k, column], k < depth.end && column < columns.end)
                    }));
                }
            }
        }
        panels
    }

    /// Against packing element by element: every code in every place, ragged rows, columns and depths, offsets, both layouts.
    #[test]
    fn blocks_are_packed_as_element_by_element() {
        if !crate::unit::has_avx512() {
            burn_fp8_test_support::skip("no AVX-512 with VBMI and BF16");
            return;
        }
        let [lines, elements] = [90, 150];
        let stride = 157;
        let bytes = codes(lines * stride);
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let matrix = Codes::strided(&bytes, format, [lines, elements], stride);
            for matrix in [matrix, matrix.transpose()] {
                let [height, width] = matrix.shape();
                for (part, depth) in [(0..1, 0..1), (3..20, 5..69), (0..70, 0..64), (7..80, 1..90)]
                {
                    let length = depth.len().next_multiple_of(STEP);
                    let (rows, d) =
                        (part.start..part.end.min(height), depth.start..depth.end.min(width));
                    for panel in [1, 5, 14, 32] {
                        let expected = left_panels(&matrix, rows.clone(), d.clone(), panel);
                        let mut packed = vec![0xAAAA; rows.len() * length];
                        // SAFETY: the machine has the instructions.
                        unsafe { left(&matrix, rows.clone(), d.clone(), panel, &mut packed) };
                        assert!(packed == expected, "left {format} {rows:?} {d:?} {panel}");
                    }
                    let (columns, d) =
                        (part.start..part.end.min(width), depth.start..depth.end.min(height));
                    let padded = columns.len().next_multiple_of(COLUMNS);
                    let expected = right_panels(&matrix, columns.clone(), d.clone());
                    let mut packed = vec![0xAAAA; padded * length];
                    // SAFETY: the machine has the instructions.
                    unsafe { right(&matrix, columns.clone(), d.clone(), &mut packed) };
                    assert!(packed == expected, "right {format} {columns:?} {d:?}");
                }
            }
        }
    }
}
