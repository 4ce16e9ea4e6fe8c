//! One pass over slices, compiled for each vector instruction set.

use burn_fp8_core::element::{self, Quantized};
use burn_fp8_core::{Fp8Format, Overflow, scale};
use pulp::{Simd, WithSimd};

use super::source::Source;
use super::widen::{Unaided, VECTOR, Widen};
use crate::unit::arch;

/// A loop that is compiled once per format and treatment of overflow.
///
/// `run` must be `#[inline(always)]`: the caller passes literals, and only inlined code sees them as constants. The same
/// holds for `with_simd` below, which pulp calls from a function compiled for AVX-512, AVX2 or NEON.
pub(crate) trait Pass {
    fn run(self, widen: impl Widen, format: Fp8Format, overflow: Overflow);
}

/// Runs `pass` with the widest vectors that this CPU has.
pub(crate) fn run<P: Pass>(pass: P, format: Fp8Format, overflow: Overflow) {
    let arch = arch();
    #[cfg(target_arch = "x86_64")]
    if let pulp::Arch::V4(simd) = arch {
        return Simd::vectorize(simd, Specialized { pass, widen: simd, format, overflow });
    }
    arch.dispatch(Specialized { pass, widen: Unaided, format, overflow });
}

struct Specialized<P, W> {
    pass: P,
    widen: W,
    format: Fp8Format,
    overflow: Overflow,
}

impl<P: Pass, W: Widen> WithSimd for Specialized<P, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        use Fp8Format::{E4M3, E5M2};
        use Overflow::{NonSaturating, Saturate, SaturateFinite};
        match (self.format, self.overflow) {
            (E4M3, Saturate) => self.pass.run(self.widen, E4M3, Saturate),
            (E4M3, SaturateFinite) => self.pass.run(self.widen, E4M3, SaturateFinite),
            (E4M3, NonSaturating) => self.pass.run(self.widen, E4M3, NonSaturating),
            (E5M2, Saturate) => self.pass.run(self.widen, E5M2, Saturate),
            (E5M2, SaturateFinite) => self.pass.run(self.widen, E5M2, SaturateFinite),
            (E5M2, NonSaturating) => self.pass.run(self.widen, E5M2, NonSaturating),
        }
    }
}

/// What is kept of a quantized element, given the scale.
pub(super) trait Form<T>: Copy {
    fn of(self, quantized: Quantized, scale: f32) -> T;
}

/// The code.
#[derive(Clone, Copy)]
pub(super) struct Code;

impl Form<u8> for Code {
    #[inline(always)]
    fn of(self, quantized: Quantized, _: f32) -> u8 {
        quantized.code()
    }
}

/// The number that the code stands for.
#[derive(Clone, Copy)]
pub(super) struct Value;

impl Form<f32> for Value {
    #[inline(always)]
    fn of(self, quantized: Quantized, _: f32) -> f32 {
        quantized.value()
    }
}

/// That number times the scale.
#[derive(Clone, Copy)]
pub(super) struct Dequantized;

impl Form<f32> for Dequantized {
    #[inline(always)]
    fn of(self, quantized: Quantized, scale: f32) -> f32 {
        quantized.value() * scale
    }
}

/// From one slice to another.
pub(super) struct Quantize<'a, S, T, F> {
    pub x: &'a [S],
    pub scale: f32,
    pub y: &'a mut [T],
    pub form: F,
}

impl<S: Source, T, F: Form<T>> Pass for Quantize<'_, S, T, F> {
    #[inline(always)]
    fn run(self, widen: impl Widen, format: Fp8Format, overflow: Overflow) {
        let Self { mut x, scale, mut y, form } = self;
        if S::is_widened(widen) {
            let vectors = x.len() - x.len() % VECTOR;
            let (x_vectors, y_vectors);
            (x_vectors, x) = x.split_at(vectors);
            (y_vectors, y) = y.split_at_mut(vectors);
            for (x, y) in
                x_vectors.as_chunks::<VECTOR>().0.iter().zip(y_vectors.as_chunks_mut::<VECTOR>().0)
            {
                for (x, y) in S::widen(widen, x).iter().zip(y) {
                    *y = form.of(element::quantize(*x, scale, format, overflow), scale);
                }
            }
        }
        for (x, y) in x.iter().zip(y) {
            *y = form.of(element::quantize(x.to_f32(), scale, format, overflow), scale);
        }
    }
}

/// From a block to its codes, and the largest magnitude of the block.
pub(super) struct QuantizeAndMeasure<'a, S: Source> {
    pub x: &'a [S],
    pub scale: f32,
    pub codes: &'a mut [u8],
    pub largest: &'a mut S::Magnitude,
}

impl<S: Source> Pass for QuantizeAndMeasure<'_, S> {
    #[inline(always)]
    fn run(self, widen: impl Widen, format: Fp8Format, overflow: Overflow) {
        let Self { mut x, scale, mut codes, largest } = self;
        // Not behind the reference, lest it is written in each step.
        let mut so_far = *largest;
        if S::is_widened(widen) {
            let vectors = x.len() - x.len() % VECTOR;
            let (x_vectors, code_vectors);
            (x_vectors, x) = x.split_at(vectors);
            (code_vectors, codes) = codes.split_at_mut(vectors);
            let mut each = [so_far; VECTOR];
            let code_vectors = code_vectors.as_chunks_mut::<VECTOR>().0;
            for (x, codes) in x_vectors.as_chunks::<VECTOR>().0.iter().zip(code_vectors) {
                for (x, each) in x.iter().zip(&mut each) {
                    *each = x.magnitude().max(*each);
                }
                for (x, code) in S::widen(widen, x).iter().zip(codes) {
                    *code = element::quantize(*x, scale, format, overflow).code();
                }
            }
            so_far = each.into_iter().fold(so_far, Ord::max);
        }
        for (x, code) in x.iter().zip(codes) {
            so_far = x.magnitude().max(so_far);
            *code = element::quantize(x.to_f32(), scale, format, overflow).code();
        }
        *largest = so_far;
    }
}

/// From one slice to codes and values.
pub(super) struct QuantizeTwice<'a, S> {
    pub x: &'a [S],
    pub scale: f32,
    pub codes: &'a mut [u8],
    pub values: &'a mut [f32],
}

impl<S: Source> Pass for QuantizeTwice<'_, S> {
    #[inline(always)]
    fn run(self, _: impl Widen, format: Fp8Format, overflow: Overflow) {
        for ((x, code), value) in self.x.iter().zip(self.codes).zip(self.values) {
            let quantized = element::quantize(x.to_f32(), self.scale, format, overflow);
            *code = quantized.code();
            *value = quantized.value();
        }
    }
}

/// Quantize and dequantize in place.
pub(super) struct QuantizeInPlace<'a> {
    pub x: &'a mut [f32],
    pub scale: f32,
}

impl Pass for QuantizeInPlace<'_> {
    #[inline(always)]
    fn run(self, _: impl Widen, format: Fp8Format, overflow: Overflow) {
        for x in self.x {
            *x = element::quantize(*x, self.scale, format, overflow).value() * self.scale;
        }
    }
}

/// From codes to values times a scale.
pub(super) struct Decode<'a> {
    pub codes: &'a [u8],
    pub scale: f32,
    pub x: &'a mut [f32],
}

impl Pass for Decode<'_> {
    #[inline(always)]
    fn run(self, _: impl Widen, format: Fp8Format, _: Overflow) {
        for (code, x) in self.codes.iter().zip(self.x) {
            *x = element::decode(*code, format) * self.scale;
        }
    }
}

/// The largest magnitude of a slice, and whether anything in it is not a number of finite size.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Amax {
    /// The largest `|x|` over finite elements; 0 if there are none.
    pub value: f32,
    /// Whether there are infinite or NaN elements.
    pub non_finite: bool,
    /// Whether there are NaN elements.
    pub nan: bool,
}

impl Amax {
    /// The amax of two slices taken together.
    pub fn union(self, other: Self) -> Self {
        Self {
            value: self.value.max(other.value),
            non_finite: self.non_finite | other.non_finite,
            nan: self.nan | other.nan,
        }
    }

    /// The largest magnitude as `max(abs(x))` of JAX and numpy has it: NaN where there is a NaN, else infinity where there is one.
    pub fn with_non_finite(self) -> f32 {
        match self {
            Self { nan: true, .. } => f32::NAN,
            Self { non_finite: true, .. } => f32::INFINITY,
            Self { value, .. } => value,
        }
    }
}

/// The largest finite magnitude of a slice.
pub(super) fn amax<S: Source>(x: &[S]) -> Amax {
    arch().dispatch(FindAmax { x })
}

struct FindAmax<'a, S> {
    x: &'a [S],
}

impl<S: Source> WithSimd for FindAmax<'_, S> {
    type Output = Amax;

    #[inline(always)]
    fn with_simd<A: Simd>(self, _: A) -> Amax {
        measure(self.x)
    }
}

/// [`amax`], inlined into a function that is compiled for a vector instruction set.
#[inline(always)]
pub(crate) fn measure<S: Source>(x: &[S]) -> Amax {
    // On bits, whose order is that of the magnitudes: an integer maximum may be reordered, so it vectorizes. Two
    // instructions per vector keep up with memory; only blocks that hold something else than finite numbers are
    // looked at again, while they are in the first-level cache.
    let mut amax = Amax::default();
    for block in x.chunks(BLOCK) {
        let zero = S::Magnitude::default();
        let largest = block.iter().map(|x| x.magnitude()).fold(zero, Ord::max);
        amax = amax.union(of_block(block, largest));
    }
    amax
}

/// Elements whose maximum is taken at once: 16 KiB of f32.
pub(super) const BLOCK: usize = 4096;

/// The amax of a block whose largest magnitude is known: what is not finite is left out by looking at the block again.
#[inline(always)]
pub(super) fn of_block<S: Source>(block: &[S], largest: S::Magnitude) -> Amax {
    if largest < S::INFINITE {
        let value = S::from_magnitude(largest).to_f32();
        return Amax { value, ..Amax::default() };
    }
    let zero = S::Magnitude::default();
    let finite = |m| if m < S::INFINITE { m } else { zero };
    let among_finite = block.iter().map(|x| finite(x.magnitude())).fold(zero, Ord::max);
    Amax {
        value: S::from_magnitude(among_finite).to_f32(),
        non_finite: true,
        nan: largest > S::INFINITE,
    }
}

/// Multiplies a slice by a factor, into another one.
pub(super) fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
    arch().dispatch(|| x.iter().zip(y).for_each(|(x, y)| *y = *x * factor));
}

/// Multiplies a slice by a factor.
pub(super) fn scale_in_place(x: &mut [f32], factor: f32) {
    arch().dispatch(|| x.iter_mut().for_each(|x| *x *= factor));
}

/// Multiplies each element of a matrix by the scales of its row and of its column.
pub(super) fn scale_rows_and_columns(y: &mut [f32], rows: &[f32], columns: &[f32]) {
    arch().dispatch(|| {
        for (row, y) in rows.iter().zip(y.chunks_exact_mut(columns.len())) {
            for (y, column) in y.iter_mut().zip(columns) {
                let [first, second] = scale::of_product(*row, *column);
                *y = *y * first * second;
            }
        }
    });
}
