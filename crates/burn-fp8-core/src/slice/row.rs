//! One row times a matrix whose rows are summed over: converted in registers, so that it takes as long as reading the matrix.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use super::element;
use super::strips::in_strips;
use crate::Fp8Format;

/// Elements that are converted at a time.
const STEP: usize = 32;

/// Bytes that are read ahead.
const AHEAD: usize = 4 << 10;

/// Where among the elements of a step the one is that comes at a place.
pub(super) type Place = fn(usize) -> usize;

/// The largest codes, as signed and as unsigned numbers: those of each sign.
type Largest = [__m256i; 2];

/// What is converted to f32 by vector instructions.
pub(super) trait Wide {
    type Element: Copy + Sync + Default;

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
    if order::<W>(x.len(), columns).is_none() {
        return false;
    }
    let power = power(x, W::FACTOR);
    let whole = x.len() - x.len() % STEP;
    let mut places = Vec::with_capacity(whole);
    for step in x[..whole].chunks_exact(STEP) {
        places.extend((0..STEP).map(|index| step[W::place(index)] / power * W::FACTOR));
    }
    let rest = x[whole..].iter().map(|x| x / power).collect();
    let shape = [1, x.len(), y.len()];
    let x = Row { whole: places, rest, power };
    let is_done = AtomicBool::new(true);
    in_strips(shape, 1, y, |rows, y| {
        // SAFETY: the instructions are there.
        if !unsafe { products::<W>(&x, matrix, scales, rows.start, y) } {
            is_done.store(false, Ordering::Relaxed);
        }
    });
    is_done.into_inner()
}

/// What `x` is divided by before it is multiplied by a factor, a power of two too: all is exact.
pub(super) fn power(x: &[f32], factor: f32) -> f32 {
    if factor == 1.0 {
        return 1.0;
    }
    // As integers, of which a loop makes vectors: those of numbers that are not infinite are ordered as their magnitudes.
    let finite = |bits: i32| if bits < f32::INFINITY.to_bits() as i32 { bits } else { 0 };
    let bits = x.iter().map(|x| finite(x.abs().to_bits() as i32));
    let exponent = bits.fold(0, i32::max) as u32 >> 23;
    // Below 2^7 is left.
    f32::from_bits((127 + exponent.saturating_sub(127 + 6)) << 23)
}

/// A row, ready to be multiplied.
struct Row {
    /// Whole steps, in the order in which elements are loaded, times what these lack, over `power`.
    whole: Vec<f32>,
    /// Over `power`.
    rest: Vec<f32>,
    power: f32,
}

/// [`Wide::place`] and [`Wide::FACTOR`], where elements can be converted: those of blocks, of so many columns, by whole steps.
pub(super) fn order<W: Wide>(k: usize, columns: usize) -> Option<(Place, f32)> {
    let is_so = is_possible() && (columns.is_multiple_of(STEP) || columns >= k);
    is_so.then_some((W::place, W::FACTOR))
}

/// Converts elements to numbers, over [`Wide::FACTOR`], in the order of [`Wide::place`]; zeros after them, to a whole step.
///
/// # Panics
/// If there is no room.
pub(super) fn convert<W: Wide>(elements: &[W::Element], numbers: &mut [f32]) {
    assert!(is_possible() && elements.len().next_multiple_of(STEP) <= numbers.len());
    // SAFETY: the instructions are there, and the room.
    if unsafe { convert_all::<W>(elements, numbers) } {
        return;
    }
    for (elements, numbers) in elements.chunks(STEP).zip(numbers.chunks_exact_mut(STEP)) {
        for (index, number) in numbers.iter_mut().enumerate() {
            let element = elements.get(W::place(index)).copied().unwrap_or_default();
            *number = W::number(element) / W::FACTOR;
        }
    }
}

/// # Safety
/// The CPU must have these instructions, and there must be room for whole steps of numbers.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn convert_all<W: Wide>(elements: &[W::Element], numbers: &mut [f32]) -> bool {
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    let (steps, rest) = elements.as_chunks::<STEP>();
    let mut out = numbers.as_mut_ptr();
    let mut step = |elements: &[W::Element; STEP]| {
        // SAFETY: a step of elements, and the caller's promises.
        unsafe {
            for (index, x) in W::load(elements.as_ptr(), &mut largest).into_iter().enumerate() {
                _mm256_storeu_ps(out.add(8 * index), x);
            }
            out = out.add(STEP);
        }
    };
    steps.iter().for_each(&mut step);
    if !rest.is_empty() {
        let mut last = [W::Element::default(); STEP];
        last[..rest.len()].copy_from_slice(rest);
        step(&last);
    }
    W::are_known(largest)
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
    let k = x.whole.len() + x.rest.len();
    let mut largest = [_mm256_set1_epi8(-1), _mm256_setzero_si256()];
    for (index, y) in y.iter_mut().enumerate() {
        let row = &matrix[(first + index) * k..][..k];
        // SAFETY: the caller's promise.
        *y = x.power
            * match scales {
                None => unsafe { product::<W, false>(x, row, (k, &[1.0]), &mut largest) },
                Some(Scales { block: [rows, columns], values }) => {
                    let columns = columns.min(k);
                    let scales = &values[(first + index) / rows * k.div_ceil(columns)..];
                    // SAFETY: the same.
                    unsafe { product::<W, true>(x, row, (columns, scales), &mut largest) }
                }
            };
    }
    W::are_known(largest)
}

/// The product with one row, whose blocks have so many columns and these scales.
///
/// One at a time: the memory is read from end to end, which is faster than several rows beside each other, the more so the shorter they are.
///
/// # Safety
/// The CPU must have these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<W: Wide, const SCALED: bool>(
    x: &Row,
    row: &[W::Element],
    (columns, scales): (usize, &[f32]),
    largest: &mut Largest,
) -> f32 {
    let (steps, rest) = row.as_chunks::<STEP>();
    let mut totals = [_mm256_setzero_ps(); 4];
    let blocks = x.whole.chunks(columns).zip(steps.chunks((columns / STEP).max(1)));
    for ((x, steps), scale) in blocks.zip(scales) {
        let mut sums = if SCALED { [_mm256_setzero_ps(); 4] } else { totals };
        for (x, elements) in x.as_chunks::<STEP>().0.iter().zip(steps) {
            let start = elements.as_ptr();
            // A step of codes is half of a line.
            if size_of::<W::Element>() > 1 || start.addr() & STEP == 0 {
                prefetch(start.wrapping_byte_add(AHEAD), STEP);
            }
            // SAFETY: as many elements of `x` and of the row.
            unsafe {
                for (i, y) in W::load(start, largest).into_iter().enumerate() {
                    sums[i] = _mm256_fmadd_ps(_mm256_loadu_ps(x.as_ptr().add(8 * i)), y, sums[i]);
                }
            }
        }
        let scale = _mm256_set1_ps(*scale);
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = if SCALED { _mm256_fmadd_ps(sum, scale, *total) } else { sum };
        }
    }
    let [a, b, c, d] = totals;
    let sums = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
    // SAFETY: all bit patterns are numbers.
    let [a, b, c, d, e, f, g, h]: [f32; 8] = unsafe { core::mem::transmute(sums) };
    let sum = ((a + e) + (b + f)) + ((c + g) + (d + h));
    let rest = x.rest.iter().zip(rest);
    let rest = rest.fold(0.0, |sum, (x, element)| sum + x * W::number(*element));
    // Less than a step: of one block, the last one.
    sum + rest * scales[x.whole.len().min(row.len() - 1) / columns]
}
