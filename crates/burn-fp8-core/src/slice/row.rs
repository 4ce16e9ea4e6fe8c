//! One row times a matrix whose rows are summed over: converted in registers, so that it takes as long as reading the matrix.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use super::element;
use super::strips::in_strips;
use crate::Fp8Format;

/// Rows of the matrix at a time.
const ROWS: usize = 2;

/// Elements that are converted at a time.
const STEP: usize = 32;

/// Bytes that are read ahead.
const AHEAD: usize = 16 << 10;

/// The largest codes, as signed and as unsigned numbers: those of each sign.
type Largest = [__m256i; 2];

/// What is converted to f32 by vector instructions.
pub(super) trait Wide {
    type Element: Copy + Sync;

    /// What all numbers are to be multiplied by: a power of two.
    const FACTOR: f32 = 1.0;

    /// The number of an element, not to be multiplied by anything.
    fn number(element: Self::Element) -> f32;

    /// Converts [`STEP`] elements, in the order of [`place`](Self::place), and notes which there are.
    ///
    /// # Safety
    /// The CPU must have the instructions, and the elements must be there.
    unsafe fn load(start: *const Self::Element, largest: &mut Largest) -> [__m256; 4];

    /// Where among the elements that are loaded the one is that comes at this place.
    fn place(index: usize) -> usize;

    /// Whether all numbers were what the elements stand for.
    fn are_known(largest: Largest) -> bool {
        let _ = largest;
        true
    }
}

/// Codes of E4M3 or of E5M2: infinities and NaN are not known.
pub(super) struct Codes<const E4M3: bool>;

impl<const E4M3: bool> Codes<E4M3> {
    const FORMAT: Fp8Format = if E4M3 { Fp8Format::E4M3 } else { Fp8Format::E5M2 };
    /// The first magnitude that is not finite.
    const PAST: u8 = if E4M3 { 0x7F } else { 0x7C };
    /// Bits of the mantissa of bf16, less those of the code.
    const SHIFT: i32 = if E4M3 { 4 } else { 5 };
}

impl<const E4M3: bool> Wide for Codes<E4M3> {
    type Element = u8;
    /// By how much the bias of f32 is larger.
    const FACTOR: f32 = f32::from_bits((127 + if E4M3 { 120 } else { 112 }) << 23);

    fn number(code: u8) -> f32 {
        element::decode(code, Self::FORMAT)
    }

    /// As bf16, but for the bias, of even and of odd codes; the even and the odd ones of these are the upper halves of f32. Shifts extend the sign, which is
    /// masked out of the bits where it does not belong.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(start: *const u8, [signed, unsigned]: &mut Largest) -> [__m256; 4] {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm256_loadu_si256(start.cast()) };
        *signed = _mm256_max_epi8(*signed, codes);
        *unsigned = _mm256_max_epu8(*unsigned, codes);
        let shift = _mm_cvtsi32_si128(8 - Self::SHIFT);
        let mask = _mm256_set1_epi16(((1 << 15) | (0x7F << Self::SHIFT)) as u16 as i16);
        let halves = |codes| _mm256_and_si256(_mm256_sra_epi16(codes, shift), mask);
        let (even, odd) = (halves(_mm256_slli_epi16::<8>(codes)), halves(codes));
        let ([a, c], [b, d]) = (split(even), split(odd));
        [a, b, c, d]
    }

    fn place(index: usize) -> usize {
        // Even codes of even places, odd ones, then those of odd places.
        4 * (index % 8) + index / 8
    }

    fn are_known([signed, unsigned]: Largest) -> bool {
        // SAFETY: all bit patterns are bytes.
        let [signed, unsigned]: [[u8; 32]; 2] = unsafe { core::mem::transmute([signed, unsigned]) };
        let is_known = |code: &u8| code & 0x7F < Self::PAST;
        // Where there is no positive code the largest is -1 or less.
        signed.iter().all(|code| code & 0x80 != 0 || is_known(code))
            && unsigned.iter().all(is_known)
    }
}

/// The even and the odd ones of 16 numbers in bf16, as f32.
#[inline]
#[target_feature(enable = "avx2")]
fn split(halves: __m256i) -> [__m256; 2] {
    let upper = _mm256_set1_epi32(0xFFFF_0000_u32 as i32);
    [_mm256_slli_epi32::<16>(halves), _mm256_and_si256(halves, upper)]
        .map(|x| _mm256_castsi256_ps(x))
}

/// Numbers of a type.
pub(super) struct Numbers<S>(PhantomData<S>);

impl Wide for Numbers<bf16> {
    type Element = bf16;

    fn number(element: bf16) -> f32 {
        element.to_f32()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(start: *const bf16, _: &mut Largest) -> [__m256; 4] {
        // SAFETY: the caller's promise.
        let halves = unsafe { [start, start.add(16)].map(|x| _mm256_loadu_si256(x.cast())) };
        let [[a, b], [c, d]] = [split(halves[0]), split(halves[1])];
        [a, b, c, d]
    }

    fn place(index: usize) -> usize {
        index / 16 * 16 + 2 * (index % 8) + index / 8 % 2
    }
}

impl Wide for Numbers<f16> {
    type Element = f16;

    fn number(element: f16) -> f32 {
        element::f16_to_f32(element)
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(start: *const f16, _: &mut Largest) -> [__m256; 4] {
        let eights = [0, 8, 16, 24].map(|at| start.wrapping_add(at));
        // SAFETY: the caller's promise.
        eights.map(|x| _mm256_cvtph_ps(unsafe { _mm_loadu_si128(x.cast()) }))
    }

    fn place(index: usize) -> usize {
        index
    }
}

/// Whether the CPU has the instructions.
fn is_possible() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Scales of blocks of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    /// Rows and columns of a block.
    pub(super) block: [usize; 2],
    /// `[⌈N / rows⌉, ⌈K / columns⌉]`.
    pub(super) values: &'a [f32],
}

/// Writes the products of `x` with the rows of a matrix to `y`: whether that could be done, for want of instructions, because of elements that are not
/// known, or of blocks that end between steps. The products of a block are summed first, then multiplied by its scale.
pub(super) fn multiply<W: Wide>(
    x: &[f32],
    matrix: &[W::Element],
    scales: Option<Scales<'_>>,
    y: &mut [f32],
) -> bool {
    let columns = scales.map_or(x.len(), |scales| scales.block[1]);
    if !is_possible() || !columns.is_multiple_of(STEP) && columns < x.len() {
        return false;
    }
    // Instead of each number `x` is multiplied, exactly: brought down to 2^7 before, by another power of two.
    let amax = x.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0f32, f32::max);
    let down = match W::FACTOR {
        1.0 => 0,
        _ => (amax.to_bits() >> 23).saturating_sub(127 + 6),
    };
    let power = f32::from_bits((127 + down) << 23);
    let whole = x.len() - x.len() % STEP;
    let mut places = Vec::with_capacity(whole);
    for step in x[..whole].chunks_exact(STEP) {
        places.extend((0..STEP).map(|index| step[W::place(index)] / power * W::FACTOR));
    }
    let rest = x[whole..].iter().map(|x| x / power).collect();
    let shape = [1, x.len(), y.len()];
    let x = Row { whole: places, rest, power };
    let is_done = AtomicBool::new(true);
    in_strips(shape, ROWS, y, |rows, y| {
        // SAFETY: the instructions are there.
        if !unsafe { products::<W>(&x, matrix, scales, rows.start, y) } {
            is_done.store(false, Ordering::Relaxed);
        }
    });
    is_done.into_inner()
}

/// A row, ready to be multiplied.
struct Row {
    /// Whole steps, in the order in which elements are loaded, times what these lack, over `power`.
    whole: Vec<f32>,
    /// Over `power`.
    rest: Vec<f32>,
    power: f32,
}

/// Numbers of codes: whether that could be done, for want of instructions or because of codes that are not known.
///
/// # Panics
/// If there are more or fewer codes than numbers.
pub(super) fn decode<const E4M3: bool>(codes: &[u8], numbers: &mut [f32]) -> bool {
    assert_eq!(codes.len(), numbers.len());
    // SAFETY: the instructions are there, and as many codes as numbers.
    is_possible() && unsafe { decode_all::<E4M3>(codes, numbers) }
}

/// # Safety
/// The CPU must have these instructions, and there must be as many codes as numbers.
#[target_feature(enable = "avx2")]
unsafe fn decode_all<const E4M3: bool>(codes: &[u8], numbers: &mut [f32]) -> bool {
    const EIGHT: usize = 8;
    let (steps, rest) = codes.as_chunks::<STEP>();
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    let factor = _mm256_set1_ps(Codes::<E4M3>::FACTOR);
    let shift = Codes::<E4M3>::SHIFT + 16;
    let mask = _mm256_set1_epi32(((1 << 31) | (0x7F << shift)) as u32 as i32);
    let shift = _mm_cvtsi32_si128(shift);
    for (codes, numbers) in steps.iter().zip(numbers.chunks_exact_mut(STEP)) {
        // SAFETY: as many codes and numbers.
        unsafe {
            let step = _mm256_loadu_si256(codes.as_ptr().cast());
            largest[0] = _mm256_max_epi8(largest[0], step);
            largest[1] = _mm256_max_epu8(largest[1], step);
            for from in (0..STEP).step_by(EIGHT) {
                // The sign is extended on the way, and masked out of the bits where it does not belong.
                let codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.as_ptr().add(from).cast()));
                let bits = _mm256_and_si256(_mm256_sll_epi32(codes, shift), mask);
                let x = _mm256_mul_ps(_mm256_castsi256_ps(bits), factor);
                _mm256_storeu_ps(numbers.as_mut_ptr().add(from), x);
            }
        }
    }
    let start = codes.len() - rest.len();
    for (number, code) in numbers[start..].iter_mut().zip(rest) {
        *number = Codes::<E4M3>::number(*code);
    }
    Codes::<E4M3>::are_known(largest)
}

/// Asks for elements that are read soon, into the second-level cache: more lines can be on their way to it than to the first.
#[inline(always)]
pub(super) fn prefetch<T>(start: *const T, count: usize) {
    for line in (0..count * size_of::<T>()).step_by(64) {
        // SAFETY: nothing is read; SSE is part of the architecture.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_byte_add(line).cast()) };
    }
}

/// The products of a row with the rows of a matrix from row `first` on: whether all elements were known.
///
/// # Safety
/// The CPU must have these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<W: Wide>(
    x: &Row,
    matrix: &[W::Element],
    scales: Option<Scales<'_>>,
    first: usize,
    y: &mut [f32],
) -> bool {
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    let last = first + y.len();
    for (row, y) in (first..last).step_by(ROWS).zip(y.chunks_mut(ROWS)) {
        // SAFETY: the caller's promise.
        unsafe {
            match scales {
                None => match y {
                    [_] => group::<W, 1, false>(x, matrix, None, row, y, &mut largest),
                    _ => group::<W, ROWS, false>(x, matrix, None, row, y, &mut largest),
                },
                scales => match y {
                    [_] => group::<W, 1, true>(x, matrix, scales, row, y, &mut largest),
                    _ => group::<W, ROWS, true>(x, matrix, scales, row, y, &mut largest),
                },
            }
        }
    }
    W::are_known(largest)
}

/// The products with `R` rows from row `first` on.
///
/// # Safety
/// The CPU must have these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group<W: Wide, const R: usize, const SCALED: bool>(
    x: &Row,
    matrix: &[W::Element],
    scales: Option<Scales<'_>>,
    first: usize,
    y: &mut [f32],
    largest: &mut Largest,
) {
    let k = x.whole.len() + x.rest.len();
    let rows = &matrix[first * k..][..R * k];
    let scale = |r: usize, column: usize| match scales {
        Some(Scales { block: [rows, columns], values }) if SCALED => {
            values[(first + r) / rows * k.div_ceil(columns) + column / columns]
        }
        _ => 1.0,
    };
    let columns = scales.map_or(k, |scales| scales.block[1]).min(k);
    let mut totals = [[_mm256_setzero_ps(); 2]; R];
    for start in (0..x.whole.len()).step_by(columns) {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        let steps = start..x.whole.len().min(start + columns);
        for (from, x) in steps.step_by(STEP).zip(x.whole[start..].as_chunks::<STEP>().0) {
            for (r, sums) in sums.iter_mut().enumerate() {
                let start = rows.as_ptr().wrapping_add(r * k + from);
                if (from * size_of::<W::Element>()).is_multiple_of(64) {
                    prefetch(start.wrapping_byte_add(AHEAD), 64 / size_of::<W::Element>());
                }
                // SAFETY: as many elements of `x` and of each row.
                unsafe {
                    for (i, y) in W::load(start, largest).into_iter().enumerate() {
                        let x = _mm256_loadu_ps(x.as_ptr().add(8 * i));
                        sums[i % 2] = _mm256_fmadd_ps(x, y, sums[i % 2]);
                    }
                }
            }
        }
        for (r, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
            let scale = _mm256_set1_ps(scale(r, start));
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = if SCALED { _mm256_fmadd_ps(sum, scale, *total) } else { sum };
            }
        }
    }
    for ((r, y), totals) in y.iter_mut().enumerate().zip(totals) {
        let mut lanes = [0f32; 8];
        // SAFETY: there is room for eight.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(totals[0], totals[1])) };
        let [a, b, c, d, e, f, g, h] = lanes;
        let sum = ((a + e) + (b + f)) + ((c + g) + (d + h));
        let rest = x.rest.iter().zip(&rows[r * k + x.whole.len()..(r + 1) * k]);
        let rest = rest.fold(0.0, |sum, (x, element)| sum + x * W::number(*element));
        // Less than a step: of one block.
        *y = (sum + rest * scale(r, x.whole.len().min(k - 1))) * x.power;
    }
}
