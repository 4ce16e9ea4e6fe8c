//! Vector instructions, and how they convert codes and numbers of two bytes to f32.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::marker::PhantomData;

use burn_fp8_core::{Fp8Format, element};
use half::{bf16, f16};

use crate::pack::Decoder;
use crate::unit::Instructions;

/// Vector instructions of a width.
pub(super) trait Vectors: Sized {
    type Floats: Copy;

    /// Elements that are converted at a time: those of four vectors of f32.
    const STEP: usize;

    /// Rows of a matrix that are read beside each other.
    const ROWS: usize;

    /// Rows that are multiplied, at most: as many as have registers for their sums.
    const MOST: usize;

    /// Those that let kernels use these.
    const NEED: Instructions;

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

    /// Runs work that is compiled for these instructions.
    ///
    /// # Safety
    /// The CPU must have them; and what the work promises.
    unsafe fn run<T: Work<Self>>(work: T) -> T::Output;
}

/// Work that is compiled for each kind of vectors.
pub(super) trait Work<V: Vectors> {
    type Output;

    /// To be inlined, so that it is compiled for the instructions: `inline(always)`.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn run(self) -> Self::Output;
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
        $(#[$about:meta])* $name:ident, $need:ident, $floats:ty, $step:literal, $rows:literal, $most:literal, $features:literal, [$($feature:tt),+],
        [$splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident, $fma:ident], |$sums:ident| $sum:expr
    ) => {
        $(#[$about])*
        pub(super) enum $name {}

        impl Vectors for $name {
            type Floats = $floats;

            const STEP: usize = $step;
            const ROWS: usize = $rows;
            const MOST: usize = $most;
            const NEED: Instructions = Instructions::$need;

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
            unsafe fn run<T: Work<Self>>(work: T) -> T::Output {
                // SAFETY: the caller's promises.
                unsafe { work.run() }
            }
        }
    };
}

vectors!(
    /// AVX2, with fused multiply-add and conversions of f16.
    Avx2, Avx2, __m256, 32, 2, 1, "avx2,fma,f16c", ["avx2", "fma", "f16c"],
    [_mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_mul_ps, _mm256_fmadd_ps],
    |sums| {
        // SAFETY: all bit patterns are numbers.
        let [a, b, c, d, e, f, g, h]: [f32; 8] = unsafe { core::mem::transmute(sums) };
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }
);

vectors!(
    /// AVX-512 with byte permutations, which look codes up.
    Avx512, Widest, __m512, 64, 4, 8, "avx512f,avx512bw,avx512vbmi", ["avx512f", "avx512bw", "avx512vbmi"],
    [_mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_mul_ps, _mm512_fmadd_ps],
    |sums| _mm512_reduce_add_ps(sums)
);

/// Codes of E4M3 or of E5M2.
pub(super) struct FromCodes<const E4M3: bool>;

impl<const E4M3: bool> FromCodes<E4M3> {
    const FORMAT: Fp8Format = if E4M3 { Fp8Format::E4M3 } else { Fp8Format::E5M2 };
    /// The first magnitude that is not finite.
    const PAST: u8 = if E4M3 { 0x7F } else { 0x7C };
    /// Bits of the mantissa of bf16, less those of the code.
    const SHIFT: i32 = if E4M3 { 4 } else { 5 };
}

/// Codes that are not finite are not known.
impl<const E4M3: bool> Wide<Avx2> for FromCodes<E4M3> {
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
impl<const E4M3: bool> Wide<Avx512> for FromCodes<E4M3> {
    type Element = u8;
    type Seen = ();

    fn number(code: u8) -> f32 {
        element::decode(code, Self::FORMAT)
    }

    fn seen() {}

    /// As bf16, the upper halves of f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn load(start: *const u8, (): &mut ()) -> [__m512; 4] {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm512_loadu_si512(start.cast()) };
        let halves = Decoder::new(Self::FORMAT).decode(codes);
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
pub(super) struct FromHalves<S>(PhantomData<S>);

impl Wide<Avx2> for FromHalves<bf16> {
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

impl Wide<Avx2> for FromHalves<f16> {
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

/// [`Wide::place`], where elements can be converted with these instructions, and kernels use them: those of blocks, of so many columns, by whole steps.
pub(super) fn order<V: Vectors, W: Wide<V>>(
    k: usize,
    columns: usize,
) -> Option<fn(usize) -> usize> {
    let is_used = V::are_there() && V::NEED <= Instructions::current();
    (is_used && (columns.is_multiple_of(V::STEP) || columns >= k)).then_some(W::place)
}

/// Converts elements to numbers, in the order of [`Wide::place`]; zeros after them.
///
/// FromHalves are multiplied by [`Wide::FACTOR`] here: without it, those of small codes are subnormal, which Intel's CPUs multiply a hundred times as slowly.
///
/// # Panics
/// If there is no room for whole steps.
pub(super) fn convert<V: Vectors, W: Wide<V>>(elements: &[W::Element], numbers: &mut [f32]) {
    let count = elements.len().next_multiple_of(V::STEP);
    assert!(V::are_there() && count <= numbers.len());
    let (numbers, after) = numbers.split_at_mut(count);
    after.fill(0.0);
    // SAFETY: the instructions are there, and the room.
    if unsafe { V::run(ConvertAll::<W, V>(elements, numbers)) } {
        return;
    }
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = W::number(elements.get(W::place(index)).copied().unwrap_or_default());
    }
}

/// Elements, and room for whole steps of numbers.
struct ConvertAll<'a, W: Wide<V>, V: Vectors>(&'a [W::Element], &'a mut [f32]);

impl<W: Wide<V>, V: Vectors> Work<V> for ConvertAll<'_, W, V> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        let Self(elements, numbers) = self;
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
}

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
