//! One row times a matrix whose rows are summed over: converted in registers, so that it takes as long as reading the matrix.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::marker::PhantomData;

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

    /// Whether the CPU has the instructions.
    fn is_possible() -> bool;

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

    fn is_possible() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

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

    fn is_possible() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

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

    fn is_possible() -> bool {
        Numbers::<bf16>::is_possible() && is_x86_feature_detected!("f16c")
    }

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

/// Writes the products of `x` with the rows of a matrix to `y`: whether that could be done, for want of instructions or because of elements that are not
/// known.
pub(super) fn multiply<W: Wide>(x: &[f32], matrix: &[W::Element], y: &mut [f32]) -> bool {
    if !W::is_possible() {
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
    let mut places: Vec<f32> = x.iter().map(|x| x / power * W::FACTOR).collect();
    for (places, x) in places[..whole].chunks_exact_mut(STEP).zip(x.chunks_exact(STEP)) {
        for (index, place) in places.iter_mut().enumerate() {
            *place = x[W::place(index)] / power * W::FACTOR;
        }
    }
    let rest = x[whole..].iter().map(|x| x / power);
    places.truncate(whole);
    let x = Row { whole: places, rest: rest.collect(), power };
    let is_done = core::sync::atomic::AtomicBool::new(true);
    let k = whole + x.rest.len();
    in_strips([1, k, y.len()], ROWS, y, |rows, y| {
        let matrix = &matrix[rows.start * k..rows.end * k];
        // SAFETY: the instructions are there.
        if !unsafe { products::<W>(&x, matrix, y) } {
            is_done.store(false, core::sync::atomic::Ordering::Relaxed);
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
    Codes::<E4M3>::is_possible() && unsafe { decode_all::<E4M3>(codes, numbers) }
}

/// # Safety
/// The CPU must have these instructions, and there must be as many codes as numbers.
#[target_feature(enable = "avx2")]
unsafe fn decode_all<const E4M3: bool>(codes: &[u8], numbers: &mut [f32]) -> bool {
    let (steps, rest) = codes.as_chunks::<STEP>();
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    let factor = _mm256_set1_ps(Codes::<E4M3>::FACTOR);
    for (codes, numbers) in steps.iter().zip(numbers.chunks_exact_mut(STEP)) {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { Codes::<E4M3>::load(codes.as_ptr(), &mut largest) };
        // Every fourth number each: transposed, pairs first.
        let [ab, cd] = [[a, b], [c, d]].map(|[x, y]| {
            let [x, y] = [x, y].map(|x| _mm256_castps_pd(_mm256_mul_ps(x, factor)));
            let [x, y] = [x, y].map(|x| _mm256_castpd_ps(x));
            [_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)].map(|x| _mm256_castps_pd(x))
        });
        let low = [_mm256_unpacklo_pd(ab[0], cd[0]), _mm256_unpackhi_pd(ab[0], cd[0])];
        let high = [_mm256_unpacklo_pd(ab[1], cd[1]), _mm256_unpackhi_pd(ab[1], cd[1])];
        let halves = [low[0], low[1], high[0], high[1]];
        for (four, half) in halves.into_iter().enumerate() {
            let half = _mm256_castpd_ps(half);
            // SAFETY: the first and the second 16 of the numbers.
            unsafe {
                _mm_storeu_ps(numbers[4 * four..].as_mut_ptr(), _mm256_castps256_ps128(half));
                let upper = _mm256_extractf128_ps::<1>(half);
                _mm_storeu_ps(numbers[16 + 4 * four..].as_mut_ptr(), upper);
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

/// The products of a row with rows of its length: whether all elements were known.
///
/// # Safety
/// The CPU must have the instructions of `W`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<W: Wide>(x: &Row, matrix: &[W::Element], y: &mut [f32]) -> bool {
    let k = x.whole.len() + x.rest.len();
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    let mut rows = matrix.chunks_exact(ROWS * k);
    let mut groups = y.chunks_exact_mut(ROWS);
    for (y, rows) in (&mut groups).zip(&mut rows) {
        // SAFETY: the caller's promise; rows of the length of `x`.
        y.copy_from_slice(&unsafe { group::<W, ROWS>(x, rows, &mut largest) });
    }
    for (y, row) in groups.into_remainder().iter_mut().zip(rows.remainder().chunks_exact(k)) {
        // SAFETY: likewise.
        [*y] = unsafe { group::<W, 1>(x, row, &mut largest) };
    }
    W::are_known(largest)
}

/// The products with `R` rows.
///
/// # Safety
/// The CPU must have the instructions of `W`, and there must be `R` rows of the length of `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group<W: Wide, const R: usize>(
    x: &Row,
    rows: &[W::Element],
    largest: &mut Largest,
) -> [f32; R] {
    let k = x.whole.len() + x.rest.len();
    assert!(rows.len() == R * k);
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for (step, x) in x.whole.as_chunks::<STEP>().0.iter().enumerate() {
        for (r, sums) in sums.iter_mut().enumerate() {
            let start = rows.as_ptr().wrapping_add(r * k + step * STEP);
            if (step * STEP * size_of::<W::Element>()).is_multiple_of(64) {
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
    let mut products = [0.0; R];
    for ((r, product), sums) in products.iter_mut().enumerate().zip(sums) {
        let mut lanes = [0f32; 8];
        // SAFETY: there is room for eight.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(sums[0], sums[1])) };
        let [a, b, c, d, e, f, g, h] = lanes;
        let sum = ((a + e) + (b + f)) + ((c + g) + (d + h));
        let rest = x.rest.iter().zip(&rows[r * k + x.whole.len()..(r + 1) * k]);
        *product = rest.fold(sum, |sum, (x, element)| sum + x * W::number(*element)) * x.power;
    }
    products
}
