//! Transposes blocks of bytes.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;

/// Rows that are transposed at a time.
pub(super) const ROWS: usize = 16;

/// Columns that are transposed at a time.
pub(super) const COLUMNS: usize = 64;

/// Writes the transpose of `rows` × `columns` bytes of `source`, whose rows are `stride` apart, to `target`, whose rows are
/// `target_stride` apart.
///
/// Bytes of `target` in columns up to the next multiple of 16 and in rows up to the next multiple of 64 are overwritten with zeros.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn transpose(
    source: &[u8],
    stride: usize,
    [rows, columns]: [usize; 2],
    target: &mut [u8],
    target_stride: usize,
) {
    assert!(rows == 0 || (rows - 1) * stride + columns <= source.len());
    assert!(rows.next_multiple_of(ROWS) <= target_stride);
    assert!(columns.next_multiple_of(COLUMNS) * target_stride <= target.len());
    for row in (0..rows).step_by(ROWS) {
        for column in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - column);
            let mask = u64::MAX >> (COLUMNS - width);
            let mut block = [_mm512_setzero_si512(); ROWS];
            for (r, block) in (row..rows).zip(&mut block) {
                // SAFETY: `width` bytes from here on are inside of `source`, as asserted above; the mask hides those beyond.
                *block = unsafe {
                    let start = source.as_ptr().add(r * stride + column);
                    _mm512_maskz_loadu_epi8(mask, start.cast())
                };
            }
            let transposed = transpose_lanes(block);
            for (r, lanes) in transposed.into_iter().enumerate() {
                let lanes = [
                    _mm512_extracti32x4_epi32::<0>(lanes),
                    _mm512_extracti32x4_epi32::<1>(lanes),
                    _mm512_extracti32x4_epi32::<2>(lanes),
                    _mm512_extracti32x4_epi32::<3>(lanes),
                ];
                for (l, lane) in lanes.into_iter().enumerate() {
                    let start = (column + ROWS * l + r) * target_stride + row;
                    // SAFETY: the row is below `columns` rounded up to 64 and its 16 bytes end within `rows` rounded up to 16, which
                    // `target` has room for, as asserted above.
                    unsafe { _mm_storeu_si128(target.as_mut_ptr().add(start).cast(), lane) };
                }
            }
        }
    }
}

/// Transposes the 16 × 16 bytes in each quarter of 16 vectors.
///
/// Four perfect shuffles: each turns the index of a byte, four bits of its vector before four bits of its place, left by one bit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose_lanes(x: [__m512i; ROWS]) -> [__m512i; ROWS] {
    shuffle(shuffle(shuffle(shuffle(x))))
}

/// Interleaves the first half of the vectors with the second half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn shuffle(x: [__m512i; ROWS]) -> [__m512i; ROWS] {
    let mut y = x;
    for i in 0..ROWS / 2 {
        y[2 * i] = _mm512_unpacklo_epi8(x[i], x[i + ROWS / 2]);
        y[2 * i + 1] = _mm512_unpackhi_epi8(x[i], x[i + ROWS / 2]);
    }
    y
}
