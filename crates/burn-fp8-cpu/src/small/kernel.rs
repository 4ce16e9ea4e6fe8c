//! Codes of the right operand, decoded and multiplied.
//!
//! A unit is 64 codes of each of four neighbouring lines. It makes two steps of four vectors of bf16:
//!
//! | lines   | a vector of a step                      | is multiplied by                          |
//! |---------|-----------------------------------------|-------------------------------------------|
//! | rows    | pairs, of two rows, of 16 columns       | one pair of a left row, in all lanes      |
//! | columns | 32 elements of one column               | as many elements of a left row            |
//!
//! So a step of columns sums 16 parts of each element of the result, which are added up in the end.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;

use crate::memory::Line;
use crate::pack::Decoder;
use crate::product::FEW_ROWS_STEP;

/// Lines of a unit, and vectors of a step.
pub(super) const LINES: usize = 4;

/// Codes of a line in a unit.
pub(super) const CODES: usize = FEW_ROWS_STEP;

/// Sums of a row: four vectors.
pub(super) const SUMS: usize = 16 * LINES;

/// Rows whose sums stay in registers while codes are decoded. More rows take decoded codes from memory.
pub(super) const FUSED: usize = 5;

/// Units that are decoded at a time for more rows: their numbers, 4 KiB, stay in the first-level cache.
pub(super) const DECODED: usize = 8;

/// Vectors of bf16 of a unit.
const VECTORS: usize = 2 * LINES;

/// Rows whose sums fit into registers beside four vectors of codes and one of the left operand.
const ROWS: usize = 6;

/// Units one after the other.
pub(super) struct Units<'a> {
    /// From the first code of the first unit on.
    pub(super) codes: &'a [u8],
    /// From line to line, and from unit to unit.
    pub(super) strides: [usize; 2],
    pub(super) count: usize,
    /// Lines, and codes of each, that are inside of the matrix: the rest of each unit is zeros.
    pub(super) inside: [usize; 2],
    /// From a code to the one that is to be in the second-level cache next.
    pub(super) ahead: usize,
}

/// Blocks of K, whose sums are multiplied before they are added: by a number for each row and each line.
#[derive(Clone, Copy)]
pub(super) struct OfBlocks<'a> {
    /// `[blocks][rows]`.
    pub(super) factors: &'a [[f32; LINES]],
    /// Units of a block.
    pub(super) units: usize,
    /// The first unit of these that are multiplied.
    pub(super) first: usize,
}

impl<'a> OfBlocks<'a> {
    /// Where the block of a unit ends, or all units do, and the factors of `rows` rows over it.
    fn until_end(
        this: Option<Self>,
        unit: usize,
        count: usize,
        rows: usize,
    ) -> (usize, Option<&'a [[f32; LINES]]>) {
        let Some(Self { factors, units, first }) = this else { return (count, None) };
        let block = (first + unit) / units;
        let end = ((block + 1) * units - first).min(count);
        (end, Some(&factors[block * rows..][..rows]))
    }
}

/// What units are multiplied with.
pub(super) struct Context<'a> {
    pub(super) decoder: Decoder,
    /// Rows of the left operand.
    pub(super) rows: usize,
    /// Room for decoded units.
    pub(super) decoded: &'a mut [Line; VECTORS * DECODED],
}

/// Pairs of the left operand for a step of a row.
pub(super) const fn pairs(columns: bool) -> usize {
    if columns { 16 } else { 1 }
}

/// Adds the products of units, of columns or of rows, to `sums` `[rows][64]`.
///
/// `left` is `[units][rows][2 steps][pairs]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
pub(super) fn add<const COLUMNS: bool>(
    context: &mut Context<'_>,
    units: &Units<'_>,
    left: &[i32],
    sums: &mut [f32],
    blocks: Option<OfBlocks<'_>>,
) {
    let &mut Context { decoder, rows, ref mut decoded } = context;
    let ([lines, codes], [line, unit]) = (units.inside, units.strides);
    assert!((1..=LINES).contains(&lines) && (1..=CODES).contains(&codes) && units.count > 0);
    assert!((lines - 1) * line + (units.count - 1) * unit + codes <= units.codes.len());
    assert!(units.count * rows * 2 * pairs(COLUMNS) <= left.len() && rows * SUMS <= sums.len());
    let whole = units.inside == [LINES, CODES];
    // SAFETY: the lengths were asserted; these units are whole.
    unsafe {
        match rows {
            1 if whole => return fused::<COLUMNS, 1>(decoder, units, left, sums, blocks),
            2 if whole => return fused::<COLUMNS, 2>(decoder, units, left, sums, blocks),
            3 if whole => return fused::<COLUMNS, 3>(decoder, units, left, sums, blocks),
            4 if whole => return fused::<COLUMNS, 4>(decoder, units, left, sums, blocks),
            FUSED if whole => return fused::<COLUMNS, FUSED>(decoder, units, left, sums, blocks),
            _ => assert!(units.count <= DECODED),
        }
    }
    // SAFETY: the lengths were asserted, and that there is room for the units.
    unsafe { decode_units::<COLUMNS>(decoder, units, decoded) };
    let height = rows.div_ceil(rows.div_ceil(ROWS));
    for first in (0..rows).step_by(height) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match height.min(rows - first) {
                    // SAFETY: these rows are inside of left operand and sums, whose lengths were asserted.
                    $($rows => unsafe {
                        multiply::<COLUMNS, $rows>(decoded, units.count, left, [first, rows], sums, blocks);
                    },)*
                    rows => unreachable!("{rows} rows at a time"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6);
    }
}

/// Multiplies whole units by `R` rows.
///
/// # Safety
/// `codes`, `left` and `sums` must be as long as [`add`] asserts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
unsafe fn fused<const COLUMNS: bool, const R: usize>(
    decoder: Decoder,
    units: &Units<'_>,
    left: &[i32],
    sums: &mut [f32],
    blocks: Option<OfBlocks<'_>>,
) {
    let [line, step] = units.strides;
    let mut next = 0;
    while next < units.count {
        let (end, factors) = OfBlocks::until_end(blocks, next, units.count, R);
        // SAFETY: the caller's promise.
        let mut totals = unsafe { load::<R>(sums.as_ptr(), factors) };
        for unit in next..end {
            let start = units.codes.as_ptr().wrapping_add(unit * step);
            let mut lines = [_mm512_setzero_si512(); LINES];
            for (j, codes) in lines.iter_mut().enumerate() {
                let start = start.wrapping_add(j * line);
                // SAFETY: 64 codes of a line of a whole unit: the caller's promise.
                *codes = unsafe { _mm512_loadu_si512(start.cast()) };
                prefetch::<COLUMNS>(start, units.ahead);
            }
            let steps = decode::<COLUMNS>(decoder, lines);
            for (s, step) in steps.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { dot::<COLUMNS, R>(&mut totals, left, (unit * R) * 2 + s, step) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { store(sums.as_mut_ptr(), totals, factors) };
        next = end;
    }
}

/// Decodes units, also those that are partly outside of the matrix.
///
/// # Safety
/// There must be at most [`DECODED`], and `codes` must be as long as [`add`] asserts.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn decode_units<const COLUMNS: bool>(
    decoder: Decoder,
    units: &Units<'_>,
    decoded: &mut [Line; VECTORS * DECODED],
) {
    let ([line, step], [height, width]) = (units.strides, units.inside);
    let mask = u64::MAX >> (CODES - width);
    for unit in 0..units.count {
        let start = units.codes.as_ptr().wrapping_add(unit * step);
        let mut lines = [_mm512_setzero_si512(); LINES];
        for (j, codes) in lines.iter_mut().enumerate() {
            if j < height {
                let start = start.wrapping_add(j * line);
                // SAFETY: `width` codes of a line that is inside; the mask hides those beyond.
                *codes = unsafe { _mm512_maskz_loadu_epi8(mask, start.cast()) };
                prefetch::<COLUMNS>(start, units.ahead);
            }
        }
        let [first, second] = decode::<COLUMNS>(decoder, lines);
        let out = decoded.as_mut_ptr().cast::<__m512i>().wrapping_add(unit * VECTORS);
        for j in 0..LINES {
            // SAFETY: eight vectors of a unit that there is room for.
            unsafe {
                _mm512_storeu_si512(out.add(j), first[j]);
                _mm512_storeu_si512(out.add(LINES + j), second[j]);
            }
        }
    }
}

/// Multiplies decoded units by `R` rows from row `first` of `rows` on.
///
/// # Safety
/// There must be at most [`DECODED`] units; `left` and `sums` must have them and these rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn multiply<const COLUMNS: bool, const R: usize>(
    decoded: &[Line; VECTORS * DECODED],
    units: usize,
    left: &[i32],
    [first, rows]: [usize; 2],
    sums: &mut [f32],
    blocks: Option<OfBlocks<'_>>,
) {
    let vectors = decoded.as_ptr().cast::<__m512i>();
    let mut next = 0;
    while next < units {
        let (end, factors) = OfBlocks::until_end(blocks, next, units, rows);
        let factors = factors.map(|factors| &factors[first..]);
        // SAFETY: the caller's promise.
        let mut totals = unsafe { load::<R>(sums.as_ptr().add(first * SUMS), factors) };
        for index in 2 * next..2 * end {
            let (unit, s) = (index / 2, index % 2);
            let mut step = [_mm512_setzero_si512(); LINES];
            for (j, vector) in step.iter_mut().enumerate() {
                // SAFETY: a vector of a unit that is there.
                *vector = unsafe { _mm512_loadu_si512(vectors.add(index * LINES + j)) };
            }
            // SAFETY: the caller's promise.
            unsafe { dot::<COLUMNS, R>(&mut totals, left, (unit * rows + first) * 2 + s, step) };
        }
        // SAFETY: the caller's promise.
        unsafe { store(sums.as_mut_ptr().add(first * SUMS), totals, factors) };
        next = end;
    }
}

/// Adds the products of a step by `R` rows, of which the first is that many steps from the beginning of `left`.
///
/// # Safety
/// `left` must have the step for all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot<const COLUMNS: bool, const R: usize>(
    totals: &mut [[__m512; LINES]; R],
    left: &[i32],
    first: usize,
    step: [__m512i; LINES],
) {
    for (row, totals) in totals.iter_mut().enumerate() {
        let index = (first + 2 * row) * pairs(COLUMNS);
        debug_assert!(index + pairs(COLUMNS) <= left.len());
        // SAFETY: the caller's promise. All bit patterns are bf16 numbers.
        unsafe {
            let x = left.as_ptr().add(index);
            let x = if COLUMNS { _mm512_loadu_si512(x.cast()) } else { _mm512_set1_epi32(*x) };
            let x: __m512bh = core::mem::transmute(x);
            for (total, y) in totals.iter_mut().zip(step) {
                *total = _mm512_dpbf16_ps(*total, x, core::mem::transmute::<__m512i, __m512bh>(y));
            }
        }
    }
}

/// The two steps of a unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn decode<const COLUMNS: bool>(decoder: Decoder, lines: [__m512i; LINES]) -> [[__m512i; LINES]; 2] {
    let [a, b, c, d] = lines;
    if !COLUMNS {
        return [decode_pairs(decoder, a, b), decode_pairs(decoder, c, d)];
    }
    let ([a, e], [b, f]) = (decoder.decode(a), decoder.decode(b));
    let ([c, g], [d, h]) = (decoder.decode(c), decoder.decode(d));
    [[a, b, c, d], [e, f, g, h]]
}

/// The pairs of two rows: of columns 0 to 3 of each 16, of columns 4 to 7, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn decode_pairs(decoder: Decoder, upper: __m512i, lower: __m512i) -> [__m512i; LINES] {
    let [a, b] = decoder.decode(_mm512_unpacklo_epi8(upper, lower));
    let [c, d] = decoder.decode(_mm512_unpackhi_epi8(upper, lower));
    [a, b, c, d]
}

/// Far ahead into the second-level cache: more lines can be on their way to it than to the first. From rows, which are left again after a few
/// units, those of the next tiles come into the first as well.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<const COLUMNS: bool>(start: *const u8, ahead: usize) {
    _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(ahead).cast());
    if !COLUMNS {
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(4 * CODES).cast());
    }
}

/// What products are added to in registers: the sums, or zeros where they are multiplied by factors first.
///
/// # Safety
/// There must be `R` rows of sums.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const R: usize>(
    sums: *const f32,
    factors: Option<&[[f32; LINES]]>,
) -> [[__m512; LINES]; R] {
    let mut totals = [[_mm512_setzero_ps(); LINES]; R];
    if factors.is_none() {
        for (i, total) in totals.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *total = unsafe { _mm512_loadu_ps(sums.add(16 * i)) };
        }
    }
    totals
}

/// What the sums are after that.
///
/// # Safety
/// There must be `R` rows of sums.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const R: usize>(
    sums: *mut f32,
    totals: [[__m512; LINES]; R],
    factors: Option<&[[f32; LINES]]>,
) {
    let totals = totals.as_flattened().iter().enumerate();
    let Some(factors) = factors else {
        for (i, total) in totals {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(sums.add(16 * i), *total) };
        }
        return;
    };
    let factors = factors[..R].as_flattened();
    for (i, total) in totals {
        // SAFETY: the caller's promise.
        unsafe {
            let (sum, factor) = (sums.add(16 * i), _mm512_set1_ps(factors[i]));
            _mm512_storeu_ps(sum, _mm512_fmadd_ps(*total, factor, _mm512_loadu_ps(sum)));
        }
    }
}
