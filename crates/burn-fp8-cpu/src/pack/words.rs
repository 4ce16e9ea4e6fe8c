//! Numbers of f32 or bf16, rounded to bf16, as words: pairs of numbers that are neighbours along K.
//!
//! What is missing, of a pair or of a vector, is zeros.

use core::arch::x86_64::*;

use half::bf16;

/// Words of a vector: numbers of a vector of f32.
pub(crate) const LANES: usize = 16;

/// Numbers that are rounded to bf16 as they are packed.
pub(crate) trait ToBf16: Copy {
    /// 32 numbers, zeros beyond `count`.
    ///
    /// # Safety
    /// The CPU must have AVX-512 F, BW and BF16; `count` numbers, or 32 of them, must be there.
    unsafe fn row(start: *const Self, count: usize) -> __m512i;

    /// 16 numbers of a row, and 16 of another; zeros beyond `count`.
    ///
    /// # Safety
    /// As for one row.
    unsafe fn two(first: *const Self, second: Option<*const Self>, count: usize) -> __m512i;
}

/// Of the first numbers of as many lanes.
fn mask(count: usize, lanes: usize) -> u32 {
    u32::MAX.checked_shr(32 - count.min(lanes) as u32).unwrap_or(0)
}

/// # Safety
/// `count` numbers, or 16 of them, must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(start: *const f32, count: usize) -> __m512 {
    // SAFETY: the mask hides what is not there, which may be outside of the memory.
    unsafe { _mm512_maskz_loadu_ps(mask(count, LANES) as __mmask16, start) }
}

impl ToBf16 for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn row(start: *const Self, count: usize) -> __m512i {
        // SAFETY: the caller's promise; a masked load may begin beyond the numbers. Vectors of bf16 and of words have the same bits.
        unsafe {
            let second = load(start.wrapping_add(LANES), count.saturating_sub(LANES));
            core::mem::transmute(_mm512_cvtne2ps_pbh(second, load(start, count)))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn two(first: *const Self, second: Option<*const Self>, count: usize) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let second = second.map_or(_mm512_setzero_ps(), |second| load(second, count));
            core::mem::transmute(_mm512_cvtne2ps_pbh(second, load(first, count)))
        }
    }
}

impl ToBf16 for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn row(start: *const Self, count: usize) -> __m512i {
        // SAFETY: the mask hides what is not there.
        unsafe { _mm512_maskz_loadu_epi16(mask(count, 2 * LANES), start.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two(first: *const Self, second: Option<*const Self>, count: usize) -> __m512i {
        let count = count.min(LANES);
        // SAFETY: as above, for 16 numbers.
        unsafe {
            let first = Self::row(first, count);
            let second = second.map_or(_mm512_setzero_si512(), |second| Self::row(second, count));
            _mm512_inserti64x4::<1>(first, _mm512_castsi512_si256(second))
        }
    }
}

/// Rows of numbers: where the first begins, and how far it is to the next.
#[derive(Clone, Copy)]
pub(crate) struct Lines<S> {
    pub(crate) start: *const S,
    pub(crate) stride: usize,
}

impl<S> Lines<S> {
    /// From an element on, which may be beyond the end of its row.
    #[inline(always)]
    fn at(self, row: usize, column: usize) -> *const S {
        self.start.wrapping_add(row * self.stride + column)
    }
}

/// Rows as they are, K along them: 16 words of each, `[width / 32][rows][16]`, with `step` words from one 32 of K to the next.
///
/// # Safety
/// The CPU must have AVX-512 F, BW and BF16; `count` rows of `width` numbers, and room for the words must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn rows<S: ToBf16>(
    lines: Lines<S>,
    [count, width]: [usize; 2],
    words: *mut u32,
    step: usize,
) {
    for (index, column) in (0..width).step_by(2 * LANES).enumerate() {
        for row in 0..count {
            // SAFETY: the row's numbers from the column on; the place of the row.
            unsafe {
                let numbers = S::row(lines.at(row, column), width - column);
                _mm512_storeu_si512(words.add(index * step + row * LANES).cast(), numbers);
            }
        }
    }
}

/// Columns as rows, K along the columns: what [`rows`] makes of the transpose.
///
/// # Safety
/// As for rows; there must be room for whole vectors of `width` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn rows_of_transpose<S: ToBf16>(
    lines: Lines<S>,
    [count, width]: [usize; 2],
    words: *mut u32,
    step: usize,
) {
    let order = pair_order();
    for (index, first) in (0..count).step_by(2 * LANES).enumerate() {
        for column in (0..width).step_by(LANES) {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (pair, block) in block.iter_mut().enumerate() {
                let row = first + 2 * pair;
                if row < count {
                    // SAFETY: rows below `count`.
                    *block = unsafe { pairs_of(lines, [row, column], [count, width], order) };
                }
            }
            let block = transpose(block);
            for (row, words_of_row) in block.into_iter().enumerate().take(width - column) {
                // SAFETY: the place of the row.
                unsafe {
                    let out = words.add(index * step + (column + row) * LANES);
                    _mm512_storeu_si512(out.cast(), words_of_row);
                }
            }
        }
    }
}

/// Words of pairs of rows, K along the columns: `[count / 2][stride]`, whole vectors of them.
///
/// # Safety
/// As for rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn pairs<S: ToBf16>(
    lines: Lines<S>,
    [count, width]: [usize; 2],
    words: *mut u32,
    stride: usize,
) {
    let order = pair_order();
    for row in (0..count).step_by(2) {
        for column in (0..width).step_by(LANES) {
            // SAFETY: rows below `count`; whole vectors of words are there.
            unsafe {
                let pairs = pairs_of(lines, [row, column], [count, width], order);
                _mm512_storeu_si512(words.add(row / 2 * stride + column).cast(), pairs);
            }
        }
    }
}

/// Rows as columns, K along them: `[width / 2][stride]`, whole vectors of them.
///
/// # Safety
/// As for rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn columns<S: ToBf16>(
    lines: Lines<S>,
    [count, width]: [usize; 2],
    words: *mut u32,
    stride: usize,
) {
    for first in (0..count).step_by(LANES) {
        for column in (0..width).step_by(2 * LANES) {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (row, block) in (first..count).zip(&mut block) {
                // SAFETY: the row's numbers from the column on.
                *block = unsafe { S::row(lines.at(row, column), width - column) };
            }
            let pairs = (width - column).div_ceil(2);
            for (pair, words_of_pair) in transpose(block).into_iter().enumerate().take(pairs) {
                // SAFETY: a pair of the width, 16 of its rows.
                unsafe {
                    let out = words.add((column / 2 + pair) * stride + first);
                    _mm512_storeu_si512(out.cast(), words_of_pair);
                }
            }
        }
    }
}

/// 16 pairs of a row and the next, from a column on.
///
/// # Safety
/// The row must be below `count`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pairs_of<S: ToBf16>(
    lines: Lines<S>,
    [row, column]: [usize; 2],
    [count, width]: [usize; 2],
    order: __m512i,
) -> __m512i {
    let second = (row + 1 < count).then(|| lines.at(row + 1, column));
    // SAFETY: numbers of both rows from the column on.
    let both = unsafe { S::two(lines.at(row, column), second, width - column) };
    _mm512_permutexvar_epi16(order, both)
}

/// Number `i` of the first 16, then of the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_order() -> __m512i {
    let order: [u16; 32] = core::array::from_fn(|i| (i / 2 + i % 2 * LANES) as u16);
    // SAFETY: 64 bytes are read from an array of 64.
    unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }
}

/// Transposes 16 vectors of 16 words.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(mut rows: [__m512i; LANES]) -> [__m512i; LANES] {
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
    const FIRST: i32 = 0b10_00_10_00;
    const SECOND: i32 = 0b11_01_11_01;
    let mut out = rows;
    for i in 0..4 {
        let [a, b, c, d] = [rows[i], rows[4 + i], rows[8 + i], rows[12 + i]];
        let even = [_mm512_shuffle_i32x4::<FIRST>(a, b), _mm512_shuffle_i32x4::<FIRST>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<SECOND>(a, b), _mm512_shuffle_i32x4::<SECOND>(c, d)];
        out[i] = _mm512_shuffle_i32x4::<FIRST>(even[0], even[1]);
        out[8 + i] = _mm512_shuffle_i32x4::<SECOND>(even[0], even[1]);
        out[4 + i] = _mm512_shuffle_i32x4::<FIRST>(odd[0], odd[1]);
        out[12 + i] = _mm512_shuffle_i32x4::<SECOND>(odd[0], odd[1]);
    }
    out
}
