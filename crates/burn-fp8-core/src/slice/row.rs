//! A few rows times a matrix whose rows are summed over: converted in registers, so that one row takes as long as reading the matrix.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::array::from_fn;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};

use super::element;
use super::strips::{in_strips, lines};
use crate::Fp8Format;

/// Bytes of a row that are asked for ahead of it, into the first-level and into the second-level cache, which more lines can be on their way to. On one
/// thread of a Xeon with AVX-512 the two together gain a fifth.
const AHEAD: [usize; 2] = [1536, 4 << 10];

/// Where among elements the one is that comes at a place.
pub(super) type Place = fn(usize) -> usize;

/// Vector instructions of a width.
pub(super) trait Vectors: Sized {
    type Floats: Copy;

    /// Elements that are converted at a time: those of four vectors of f32.
    const STEP: usize;

    /// Rows of a matrix that are read beside each other.
    const ROWS: usize;

    /// Rows that are multiplied, at most: as many as have registers for their sums.
    const MOST: usize;

    /// Whether the CPU has the instructions.
    fn are_there() -> bool;

    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn splat(x: f32) -> Self::Floats;

    /// Adds the product with numbers of the memory.
    ///
    /// # Safety
    /// The CPU must have the instructions, and a vector of numbers must be there.
    unsafe fn add_product(sum: Self::Floats, x: *const f32, y: Self::Floats) -> Self::Floats;

    /// `total + sum · scale`.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn add_scaled(
        total: Self::Floats,
        sum: Self::Floats,
        scale: Self::Floats,
    ) -> Self::Floats;

    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn scale(x: Self::Floats, scale: Self::Floats) -> Self::Floats;

    /// # Safety
    /// The CPU must have the instructions, and a vector of numbers must have room.
    unsafe fn store_scaled(place: *mut f32, x: Self::Floats, scale: Self::Floats);

    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// The sum of all numbers.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn sum(sums: Self::Floats) -> f32;

    /// [`products`], compiled for these instructions.
    ///
    /// # Safety
    /// The CPU must have them.
    unsafe fn products<W: Wide<Self>>(
        x: &Few<'_>,
        matrix: &[W::Element],
        scales: Option<Scales<'_>>,
        first: usize,
        y: &mut [f32],
    ) -> bool;

    /// [`convert_all`], compiled for these instructions.
    ///
    /// # Safety
    /// The CPU must have them, and there must be room for whole steps of numbers.
    unsafe fn convert<W: Wide<Self>>(elements: &[W::Element], numbers: &mut [f32]) -> bool;
}

/// What is converted to f32 by vector instructions.
pub(super) trait Wide<V: Vectors> {
    type Element: Copy + Sync + Default;

    /// What is known of the elements that were converted.
    type Seen: Copy;

    /// What all numbers are to be multiplied by: a power of two.
    const FACTOR: f32 = 1.0;

    /// The number of an element, not to be multiplied by anything.
    fn number(element: Self::Element) -> f32;

    /// What is known before any was converted.
    fn seen() -> Self::Seen;

    /// Converts [`Vectors::STEP`] elements, in the order of [`place`](Self::place), and notes which there are.
    ///
    /// # Safety
    /// The CPU must have the instructions, and the elements must be there.
    unsafe fn load(start: *const Self::Element, seen: &mut Self::Seen) -> [V::Floats; 4];

    /// Where the element is that comes at this place.
    fn place(index: usize) -> usize;

    /// Whether all numbers were what the elements stand for.
    fn are_known(seen: Self::Seen) -> bool {
        let _ = seen;
        true
    }
}

/// Vectors of f32 with their instructions: how they are called, and what else of the CPU conversions need.
macro_rules! vectors {
    (
        $(#[$about:meta])* $name:ident, $floats:ty, $step:literal, $rows:literal, $most:literal, $features:literal, [$($feature:tt),+],
        [$splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident, $fma:ident], |$sums:ident| $sum:expr
    ) => {
        $(#[$about])*
        pub(super) enum $name {}

        impl Vectors for $name {
            type Floats = $floats;

            const STEP: usize = $step;
            const ROWS: usize = $rows;
            const MOST: usize = $most;

            fn are_there() -> bool {
                $(is_x86_feature_detected!($feature))&&+
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn splat(x: f32) -> $floats {
                $splat(x)
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_product(sum: $floats, x: *const f32, y: $floats) -> $floats {
                // SAFETY: the caller's promise.
                $fma(unsafe { $load(x) }, y, sum)
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_scaled(total: $floats, sum: $floats, scale: $floats) -> $floats {
                $fma(sum, scale, total)
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn scale(x: $floats, scale: $floats) -> $floats {
                $mul(x, scale)
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store_scaled(place: *mut f32, x: $floats, scale: $floats) {
                // SAFETY: the caller's promise.
                unsafe { $store(place, $mul(x, scale)) }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add(a: $floats, b: $floats) -> $floats {
                $add(a, b)
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn sum($sums: $floats) -> f32 {
                $sum
            }

            #[target_feature(enable = $features)]
            unsafe fn products<W: Wide<Self>>(
                x: &Few<'_>,
                matrix: &[W::Element],
                scales: Option<Scales<'_>>,
                first: usize,
                y: &mut [f32],
            ) -> bool {
                // SAFETY: the caller's promise.
                unsafe { products::<Self, W, $rows>(x, matrix, scales, first, y) }
            }

            #[target_feature(enable = $features)]
            unsafe fn convert<W: Wide<Self>>(
                elements: &[W::Element],
                numbers: &mut [f32],
            ) -> bool {
                // SAFETY: the caller's promises.
                unsafe { convert_all::<Self, W>(elements, numbers) }
            }
        }
    };
}

vectors!(
    /// AVX2, with fused multiply-add and conversions of f16.
    Avx2, __m256, 32, 2, 1, "avx2,fma,f16c", ["avx2", "fma", "f16c"],
    [_mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_mul_ps, _mm256_fmadd_ps],
    |sums| {
        // SAFETY: all bit patterns are numbers.
        let [a, b, c, d, e, f, g, h]: [f32; 8] = unsafe { core::mem::transmute(sums) };
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }
);

vectors!(
    /// AVX-512 with byte permutations, which look codes up.
    Avx512, __m512, 64, 4, 8, "avx512f,avx512bw,avx512vbmi", ["avx512f", "avx512bw", "avx512vbmi"],
    [_mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_mul_ps, _mm512_fmadd_ps],
    |sums| _mm512_reduce_add_ps(sums)
);

/// Codes of E4M3 or of E5M2.
pub(super) struct Codes<const E4M3: bool>;

impl<const E4M3: bool> Codes<E4M3> {
    const FORMAT: Fp8Format = if E4M3 { Fp8Format::E4M3 } else { Fp8Format::E5M2 };
    /// The first magnitude that is not finite.
    const PAST: u8 = if E4M3 { 0x7F } else { 0x7C };
    /// Bits of the mantissa of bf16, less those of the code.
    const SHIFT: i32 = if E4M3 { 4 } else { 5 };

    /// The lower and the upper bytes of codes without a sign, in bf16, which holds each of them exactly.
    const TABLES: [[u8; 128]; 2] = {
        let mut tables = [[0; 128]; 2];
        let mut code = 0;
        while code < 128 {
            let bits = element::decode(code as u8, Self::FORMAT).to_bits() >> 16;
            tables[0][code] = bits as u8;
            tables[1][code] = (bits >> 8) as u8;
            code += 1;
        }
        tables
    };
}

/// Codes that are not finite are not known.
impl<const E4M3: bool> Wide<Avx2> for Codes<E4M3> {
    type Element = u8;
    /// The largest codes, as signed and as unsigned numbers: those of each sign.
    type Seen = [__m256i; 2];

    /// By how much the bias of f32 is larger.
    const FACTOR: f32 = f32::from_bits((127 + if E4M3 { 120 } else { 112 }) << 23);

    fn number(code: u8) -> f32 {
        element::decode(code, Self::FORMAT)
    }

    fn seen() -> Self::Seen {
        // SAFETY: all bit patterns are integers.
        unsafe { core::mem::transmute([[u8::MAX; 32], [0; 32]]) }
    }

    /// As bf16, but for the bias, of even and of odd codes; the even and the odd ones of these are the upper halves of f32. Shifts extend the sign, which is
    /// masked out of the bits where it does not belong.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(start: *const u8, [signed, unsigned]: &mut Self::Seen) -> [__m256; 4] {
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
        index / 32 * 32 + 4 * (index % 8) + index % 32 / 8
    }

    fn are_known([signed, unsigned]: Self::Seen) -> bool {
        // SAFETY: all bit patterns are bytes.
        let [signed, unsigned]: [[u8; 32]; 2] = unsafe { core::mem::transmute([signed, unsigned]) };
        let is_known = |code: &u8| code & 0x7F < Self::PAST;
        // Where there is no positive code the largest is -1 or less.
        signed.iter().all(|code| code & 0x80 != 0 || is_known(code))
            && unsigned.iter().all(is_known)
    }
}

/// All codes are known.
impl<const E4M3: bool> Wide<Avx512> for Codes<E4M3> {
    type Element = u8;
    type Seen = ();

    fn number(code: u8) -> f32 {
        element::decode(code, Self::FORMAT)
    }

    fn seen() {}

    /// Both bytes are looked up, the upper ones get the sign, and both are put together to bf16, the upper halves of f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn load(start: *const u8, (): &mut ()) -> [__m512; 4] {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm512_loadu_si512(start.cast()) };
        // SAFETY: all bit patterns are bytes.
        let [lower, upper]: [[__m512i; 2]; 2] = unsafe { core::mem::transmute(Self::TABLES) };
        // The sign is not looked at.
        let [lower, upper] = [lower, upper].map(|[a, b]| _mm512_permutex2var_epi8(a, codes, b));
        /// `upper | (codes & sign)`.
        const WITH_SIGN: i32 = 0xF8;
        let sign = _mm512_set1_epi8(i8::MIN);
        let upper = _mm512_ternarylogic_epi32::<WITH_SIGN>(upper, codes, sign);
        let halves = [_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)];
        let mask = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
        let [[a, b], [c, d]] =
            halves.map(|halves| [_mm512_slli_epi32::<16>(halves), _mm512_and_si512(halves, mask)]);
        [a, b, c, d].map(|x| _mm512_castsi512_ps(x))
    }

    fn place(index: usize) -> usize {
        // Of each 16 codes, even and odd ones of the first half, then those of the second one.
        let (vector, lane) = (index % 64 / 16, index % 16);
        index / 64 * 64 + lane / 4 * 16 + vector / 2 * 8 + lane % 4 * 2 + vector % 2
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

impl Wide<Avx2> for Numbers<bf16> {
    type Element = bf16;
    type Seen = ();

    fn number(element: bf16) -> f32 {
        element.to_f32()
    }

    fn seen() {}

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(start: *const bf16, (): &mut ()) -> [__m256; 4] {
        // SAFETY: the caller's promise.
        let halves = unsafe { [start, start.add(16)].map(|x| _mm256_loadu_si256(x.cast())) };
        let [[a, b], [c, d]] = [split(halves[0]), split(halves[1])];
        [a, b, c, d]
    }

    fn place(index: usize) -> usize {
        index / 16 * 16 + 2 * (index % 8) + index / 8 % 2
    }
}

impl Wide<Avx2> for Numbers<f16> {
    type Element = f16;
    type Seen = ();

    fn number(element: f16) -> f32 {
        element::f16_to_f32(element)
    }

    fn seen() {}

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(start: *const f16, (): &mut ()) -> [__m256; 4] {
        let eights = [0, 8, 16, 24].map(|at| start.wrapping_add(at));
        // SAFETY: the caller's promise.
        eights.map(|x| _mm256_cvtph_ps(unsafe { _mm_loadu_si128(x.cast()) }))
    }

    fn place(index: usize) -> usize {
        index
    }
}

/// Scales of blocks of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    /// Rows and columns of a block.
    pub(super) block: [usize; 2],
    /// `[⌈N / rows⌉, ⌈K / columns⌉]`.
    pub(super) values: &'a [f32],
}

/// Writes the products of the rows of `x` `[M, K]` with those of a matrix to `y` `[M, N]`: whether that could be done, for want of instructions, because of
/// elements that are not known, of blocks that end between steps, or of more rows than [`Vectors::MOST`].
///
/// With a single row the products of a block are summed first, then multiplied by its scale; with more the numbers are.
pub(super) fn multiply<V: Vectors, W: Wide<V>>(
    x: &[f32],
    matrix: &[W::Element],
    scales: Option<Scales<'_>>,
    [m, k, n]: [usize; 3],
    y: &mut [f32],
) -> bool {
    if m > V::MOST || order::<V, W>(k, scales.map_or(k, |scales| scales.block[1])).is_none() {
        return false;
    }
    let (mut room, first) = lines(m * k.next_multiple_of(V::STEP));
    let mut powers = [1.0; MOST];
    let places: [usize; LONGEST_STEP] = from_fn(W::place);
    for (row, (x, of_row)) in x.chunks_exact(k).zip(&mut powers).enumerate() {
        *of_row = power(x, W::FACTOR);
        let factor = W::FACTOR / *of_row;
        let steps = room[first..].chunks_exact_mut(V::STEP).skip(row).step_by(m);
        let (whole, rest) = x.split_at(k - k % V::STEP);
        let mut last = [0.0; LONGEST_STEP];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last[..V::STEP]);
        for (x, step) in whole.chunks_exact(V::STEP).chain(last).zip(steps) {
            for (number, place) in step.iter_mut().zip(&places) {
                // The mask changes nothing: it says that the place is in the step.
                *number = x[place & (V::STEP - 1)] * factor;
            }
        }
    }
    let x = Few { steps: &room[first..], m, k, powers };
    let is_done = AtomicBool::new(true);
    in_strips([m, k, n], V::ROWS, y, |rows, y| {
        // SAFETY: the instructions are there.
        if !unsafe { V::products::<W>(&x, matrix, scales, rows.start, y) } {
            is_done.store(false, Ordering::Relaxed);
        }
    });
    is_done.into_inner()
}

/// What `x` is divided by before it is multiplied by a factor, a power of two too: all is exact.
fn power(x: &[f32], factor: f32) -> f32 {
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

/// Rows that any vectors multiply, at most.
const MOST: usize = 8;

/// A few rows, ready to be multiplied.
pub(super) struct Few<'a> {
    /// A step of each row, then the next step of each, in the order in which elements are loaded, times what these lack, over the row's power; zeros after
    /// them, to a whole step.
    steps: &'a [f32],
    m: usize,
    k: usize,
    powers: [f32; MOST],
}

/// [`Wide::place`], where elements can be converted: those of blocks, of so many columns, by whole steps.
pub(super) fn order<V: Vectors, W: Wide<V>>(k: usize, columns: usize) -> Option<Place> {
    (V::are_there() && (columns.is_multiple_of(V::STEP) || columns >= k)).then_some(W::place)
}

/// Converts elements to numbers, in the order of [`Wide::place`]; zeros after them.
///
/// Numbers are multiplied by [`Wide::FACTOR`] here: without it, those of small codes are subnormal, which Intel's CPUs multiply a hundred times as slowly.
///
/// # Panics
/// If there is no room for whole steps.
pub(super) fn convert<V: Vectors, W: Wide<V>>(elements: &[W::Element], numbers: &mut [f32]) {
    let count = elements.len().next_multiple_of(V::STEP);
    assert!(V::are_there() && count <= numbers.len());
    let (numbers, after) = numbers.split_at_mut(count);
    after.fill(0.0);
    // SAFETY: the instructions are there, and the room.
    if unsafe { V::convert::<W>(elements, numbers) } {
        return;
    }
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = W::number(elements.get(W::place(index)).copied().unwrap_or_default());
    }
}

/// # Safety
/// The CPU must have the instructions, and there must be room for whole steps of numbers.
#[inline(always)]
unsafe fn convert_all<V: Vectors, W: Wide<V>>(
    elements: &[W::Element],
    numbers: &mut [f32],
) -> bool {
    let mut seen = W::seen();
    let steps = elements.chunks_exact(V::STEP);
    let rest = steps.remainder();
    let mut out = numbers.as_mut_ptr();
    // SAFETY: a step of elements each time, and the caller's promises.
    unsafe {
        let factor = V::splat(W::FACTOR);
        for step in steps {
            for (index, x) in W::load(step.as_ptr(), &mut seen).into_iter().enumerate() {
                V::store_scaled(out.add(index * V::STEP / 4), x, factor);
            }
            out = out.add(V::STEP);
        }
        if !rest.is_empty() {
            let mut last = [W::Element::default(); LONGEST_STEP];
            last[..rest.len()].copy_from_slice(rest);
            for (index, x) in W::load(last.as_ptr(), &mut seen).into_iter().enumerate() {
                V::store_scaled(out.add(index * V::STEP / 4), x, factor);
            }
        }
    }
    W::are_known(seen)
}

/// Numbers of a few rows that the matrix is multiplied by at a time: 32 KiB, which stay in the first-level cache.
const PORTION: usize = 8 << 10;

/// Rows of a matrix that this is done with, one after the other.
const HEIGHT: usize = 16;

/// Elements of the longest step.
pub(super) const LONGEST_STEP: usize = 64;

/// Asks for elements that are read soon, into a level of caches.
#[inline(always)]
pub(super) fn prefetch<const LEVEL: i32, T>(start: *const T, count: usize) {
    for line in (0..count * size_of::<T>()).step_by(64) {
        // SAFETY: nothing is read; SSE is part of the architecture.
        unsafe { _mm_prefetch::<LEVEL>(start.wrapping_byte_add(line).cast()) };
    }
}

/// Where bytes are that are read later, in a matrix of which `R` rows are read beside each other.
struct Ahead<const R: usize> {
    /// From this byte of a row on they are in the rows that come another time later.
    turn: usize,
    /// How far from the byte, before `turn` and from there on.
    by: [usize; 2],
}

impl<const R: usize> Ahead<R> {
    /// So many bytes of a row ahead, in rows of `length` bytes.
    fn new(bytes: usize, length: usize) -> Self {
        let by = |times: usize| bytes + times * (R - 1) * length;
        let times = bytes / length;
        Self { turn: length - bytes % length, by: [by(times), by(times + 1)] }
    }

    #[inline(always)]
    fn of(&self, byte: usize) -> usize {
        self.by[usize::from(byte >= self.turn)]
    }
}

/// The products of a few rows with those of a matrix from row `first` on: whether all elements were known. A row is multiplied by `R` of the
/// matrix at a time, several by two or one: their sums fill the registers.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn products<V: Vectors, W: Wide<V>, const R: usize>(
    x: &Few<'_>,
    matrix: &[W::Element],
    scales: Option<Scales<'_>>,
    first: usize,
    y: &mut [f32],
) -> bool {
    let mut seen = W::seen();
    let matrix = (matrix, scales, first);
    // SAFETY: the caller's promise.
    unsafe {
        match x.m.min(V::MOST) {
            1 => one::<V, W, R>(x, matrix, y, &mut seen),
            2 => some::<V, W, 2, 2>(x, matrix, y, &mut seen),
            3 => some::<V, W, 2, 3>(x, matrix, y, &mut seen),
            4 => some::<V, W, 2, 4>(x, matrix, y, &mut seen),
            5 => some::<V, W, 2, 5>(x, matrix, y, &mut seen),
            6 => some::<V, W, 2, 6>(x, matrix, y, &mut seen),
            7 => some::<V, W, 1, 7>(x, matrix, y, &mut seen),
            _ => some::<V, W, 1, MOST>(x, matrix, y, &mut seen),
        }
    }
    W::are_known(seen)
}

/// Rows of a matrix from one on, with scales of blocks.
type Matrix<'a, E> = (&'a [E], Option<Scales<'a>>, usize);

/// The products of one row.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn one<V: Vectors, W: Wide<V>, const R: usize>(
    x: &Few<'_>,
    (matrix, scales, first): Matrix<'_, W::Element>,
    y: &mut [f32],
    seen: &mut W::Seen,
) {
    let (groups, rest) = y.as_chunks_mut::<R>();
    let of_rest = first + groups.len() * R;
    // SAFETY: the caller's promise.
    unsafe {
        for (index, y) in groups.iter_mut().enumerate() {
            *y = row::<V, W, R>(x, (matrix, scales, first + index * R), seen);
        }
        for (index, y) in rest.iter_mut().enumerate() {
            [*y] = row::<V, W, 1>(x, (matrix, scales, of_rest + index), seen);
        }
    }
}

/// The products of `P` rows: for a while of K, those with some rows of the matrix, then the next while, so that `x` stays in the first-level cache.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn some<V: Vectors, W: Wide<V>, const R: usize, const P: usize>(
    x: &Few<'_>,
    (matrix, scales, first): Matrix<'_, W::Element>,
    y: &mut [f32],
    seen: &mut W::Seen,
) {
    let (k, count) = (x.k, y.len() / P);
    let whiles = k.div_ceil(PORTION / P);
    let depth = k.div_ceil(whiles).next_multiple_of(V::STEP);
    for start in (0..count).step_by(HEIGHT) {
        let height = HEIGHT.min(count - start);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); P]; HEIGHT];
            for from in (0..k).step_by(depth) {
                let columns = from..k.min(from + depth);
                // The next while of the same row, or the first one of a later row.
                let ahead = if columns.end < k { depth } else { HEIGHT * k - from };
                let place = |row| ((matrix, scales, first + start + row), columns.clone(), ahead);
                let mut row = 0;
                while row + R <= height {
                    let sums = sums[row..].first_chunk_mut::<R>().expect("R of HEIGHT rows");
                    match scales {
                        None => tile::<V, W, R, P, false>(x, place(row), sums, seen),
                        Some(_) => tile::<V, W, R, P, true>(x, place(row), sums, seen),
                    }
                    row += R;
                }
                while row < height {
                    let sums = sums[row..].first_chunk_mut::<1>().expect("one of HEIGHT rows");
                    tile::<V, W, 1, P, true>(x, place(row), sums, seen);
                    row += 1;
                }
            }
            for (row, sums) in sums[..height].iter().enumerate() {
                for p in 0..P {
                    y[p * count + start + row] = x.powers[p] * V::sum(sums[p]);
                }
            }
        }
    }
}

/// `R` rows of a matrix of rows of `k`, the columns of a block, and its scales in each row.
#[inline(always)]
fn rows_of<E, const R: usize>(
    (matrix, scales, first): Matrix<'_, E>,
    k: usize,
) -> ([&[E]; R], usize, [&[f32]; R]) {
    let rows = from_fn(|r| &matrix[(first + r) * k..][..k]);
    match scales {
        None => (rows, k, [&[1.0]; R]),
        Some(Scales { block: [height, columns], values }) => {
            let columns = columns.min(k);
            let scales = from_fn(|r| &values[(first + r) / height * k.div_ceil(columns)..]);
            (rows, columns, scales)
        }
    }
}

/// Adds the products of `P` rows with `R` rows of a matrix, of some columns, and asks for elements that are so many ahead. What is added for a row does not
/// depend on the others.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn tile<V: Vectors, W: Wide<V>, const R: usize, const P: usize, const SCALED: bool>(
    x: &Few<'_>,
    (matrix, range, ahead): (Matrix<'_, W::Element>, Range<usize>, usize),
    totals: &mut [[V::Floats; P]; R],
    seen: &mut W::Seen,
) {
    let k = x.k;
    let (rows, columns, scales) = rows_of::<_, R>(matrix, k);
    let ahead = ahead * size_of::<W::Element>();
    let step = V::STEP * size_of::<W::Element>();
    let whole = range.end - range.len() % V::STEP;
    let mut from = range.start;
    // In registers.
    let mut sums = *totals;
    // SAFETY: the caller's promise; a step of elements each time, and as many of each row of `x`.
    unsafe {
        while from < whole {
            let block = from / columns;
            let to = whole.min((block + 1) * columns);
            let mut of_block = [V::splat(1.0); R];
            for r in 0..R {
                of_block[r] = V::splat(scales[r][block]);
            }
            for column in (from..to).step_by(V::STEP) {
                let x = x.steps[column * P..][..V::STEP * P].as_ptr();
                let mut starts = [rows[0].as_ptr(); R];
                for r in 0..R {
                    starts[r] = rows[r][column..][..V::STEP].as_ptr();
                    // A step of codes can be half of a line.
                    if step >= 64 || starts[r].addr() & step == 0 {
                        prefetch::<_MM_HINT_T1, _>(starts[r].wrapping_byte_add(ahead), V::STEP);
                    }
                }
                add_steps::<V, W, R, P, SCALED>(&mut sums, x, starts, of_block, seen);
            }
            from = to;
        }
        if whole < range.end {
            let mut last = [[W::Element::default(); LONGEST_STEP]; R];
            let (mut starts, mut of_block) = ([last[0].as_ptr(); R], [V::splat(1.0); R]);
            for r in 0..R {
                last[r][..k - whole].copy_from_slice(&rows[r][whole..]);
                starts[r] = last[r].as_ptr();
                of_block[r] = V::splat(scales[r][whole / columns]);
            }
            let x = x.steps[whole * P..][..V::STEP * P].as_ptr();
            add_steps::<V, W, R, P, SCALED>(&mut sums, x, starts, of_block, seen);
        }
    }
    *totals = sums;
}

/// Adds the products with a step of elements of each row, times a scale.
///
/// # Safety
/// The CPU must have the instructions, and there must be a step of all.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "iterators over so many sums leave them in memory")]
unsafe fn add_steps<V: Vectors, W: Wide<V>, const R: usize, const P: usize, const SCALED: bool>(
    sums: &mut [[V::Floats; P]; R],
    x: *const f32,
    starts: [*const W::Element; R],
    scales: [V::Floats; R],
    seen: &mut W::Seen,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut numbers = [[V::splat(0.0); 4]; R];
        for r in 0..R {
            numbers[r] = W::load(starts[r], seen);
            if SCALED {
                for number in &mut numbers[r] {
                    *number = V::scale(*number, scales[r]);
                }
            }
        }
        for i in 0..4 {
            for p in 0..P {
                let x = x.add(p * V::STEP + V::STEP / 4 * i);
                for r in 0..R {
                    sums[r][p] = V::add_product(sums[r][p], x, numbers[r][i]);
                }
            }
        }
    }
}

/// The products of one row with `R` rows of a matrix. That of a row does not depend on the others.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn row<V: Vectors, W: Wide<V>, const R: usize>(
    x: &Few<'_>,
    matrix: Matrix<'_, W::Element>,
    seen: &mut W::Seen,
) -> [f32; R] {
    let k = x.k;
    let (rows, columns, scales) = rows_of::<_, R>(matrix, k);
    let size = size_of::<W::Element>();
    let step = V::STEP * size;
    let ahead = AHEAD.map(|bytes| Ahead::<R>::new(bytes, k * size));
    let whole = k - k % V::STEP;
    let width = (columns / V::STEP * V::STEP).max(V::STEP);
    // SAFETY: the caller's promise; a step of elements each time, and as many of `x`.
    unsafe {
        let mut totals = [V::splat(0.0); R];
        for from in (0..whole).step_by(width) {
            let mut sums = [[V::splat(0.0); 4]; R];
            for column in (from..whole.min(from + width)).step_by(V::STEP) {
                let x = x.steps[column..][..V::STEP].as_ptr();
                let [near, far] = [0, 1].map(|cache| ahead[cache].of(column * size));
                for r in 0..R {
                    let start = rows[r][column..][..V::STEP].as_ptr();
                    // A step of codes can be half of a line.
                    if step >= 64 || start.addr() & step == 0 {
                        prefetch::<_MM_HINT_T0, _>(start.wrapping_byte_add(near), V::STEP);
                        prefetch::<_MM_HINT_T1, _>(start.wrapping_byte_add(far), V::STEP);
                    }
                    add_step::<V, W>(&mut sums[r], x, start, seen);
                }
            }
            for r in 0..R {
                totals[r] = add_block::<V>(totals[r], sums[r], scales[r][from / columns]);
            }
        }
        if whole < k {
            for r in 0..R {
                let mut last = [W::Element::default(); LONGEST_STEP];
                last[..k - whole].copy_from_slice(&rows[r][whole..]);
                let mut sums = [V::splat(0.0); 4];
                add_step::<V, W>(&mut sums, x.steps[whole..].as_ptr(), last.as_ptr(), seen);
                totals[r] = add_block::<V>(totals[r], sums, scales[r][whole / columns]);
            }
        }
        let mut results = [0.0; R];
        for r in 0..R {
            results[r] = x.powers[0] * V::sum(totals[r]);
        }
        results
    }
}

/// Adds the products with a step of elements.
///
/// # Safety
/// The CPU must have the instructions, and there must be a step of both.
#[inline(always)]
unsafe fn add_step<V: Vectors, W: Wide<V>>(
    sums: &mut [V::Floats; 4],
    x: *const f32,
    start: *const W::Element,
    seen: &mut W::Seen,
) {
    // SAFETY: the caller's promises.
    unsafe {
        for (i, y) in W::load(start, seen).into_iter().enumerate() {
            sums[i] = V::add_product(sums[i], x.add(V::STEP / 4 * i), y);
        }
    }
}

/// Adds the sums of a block, times its scale.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn add_block<V: Vectors>(total: V::Floats, sums: [V::Floats; 4], scale: f32) -> V::Floats {
    let [a, b, c, d] = sums;
    // SAFETY: the caller's promise.
    unsafe { V::add_scaled(total, V::add(V::add(a, b), V::add(c, d)), V::splat(scale)) }
}
