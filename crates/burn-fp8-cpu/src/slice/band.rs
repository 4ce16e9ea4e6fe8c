//! One pass over a band of rows that share the scales of blocks, compiled for each vector instruction set.

use burn_fp8_core::{Fp8Format, Overflow, Recipe, element, scale};
use pulp::{Simd, WithSimd};

use super::pass::{self, Form, Pass, Quantize};
use super::source::{Source, sealed::Sealed};
use super::widen::{VECTOR, Widen};
use crate::unit::arch;

/// Bands of rows that share scales, and where what is kept of them goes.
pub(super) struct Bands<'a, S, T, F> {
    pub x: &'a [S],
    pub shape: Shape,
    pub scales: BandScales<'a>,
    pub form: F,
    pub y: &'a mut [T],
}

/// What bands have in common.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Elements of a band; the last one may have fewer.
    pub elements: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Columns of a block.
    pub width: usize,
    /// Blocks of a band.
    pub blocks: usize,
}

/// The scales of the blocks of bands, one band after the other.
pub(super) enum BandScales<'a> {
    /// They follow from the bands themselves, and are written here.
    Current(Recipe, &'a mut [f32]),
    Given(&'a [f32]),
}

impl<S: Source, T, F: Form<T>> Pass for Bands<'_, S, T, F> {
    #[inline(always)]
    fn run(self, widen: impl Widen, format: Fp8Format, overflow: Overflow) {
        let Self { x, shape, mut scales, form, y } = self;
        let has_powers = match &scales {
            BandScales::Current(recipe, _) => recipe.has_powers_of_two(),
            BandScales::Given(_) => false,
        };
        let mut factors = vec![0f32; if shape.width < shape.columns { shape.columns } else { 0 }];
        let bands = x.chunks(shape.elements).zip(y.chunks_mut(shape.elements));
        for (index, (x, y)) in bands.enumerate() {
            let blocks = index * shape.blocks..(index + 1) * shape.blocks;
            let scales = match &mut scales {
                BandScales::Current(recipe, scales) => {
                    let scales = &mut scales[blocks];
                    measure_blocks(x, shape, &mut factors, scales);
                    scale::of_blocks(scales, format, *recipe);
                    &*scales
                }
                BandScales::Given(scales) => &scales[blocks],
            };
            if factors.is_empty() {
                let pass = Quantize { x, scale: scales[0], y, form };
                pass.run(widen, format, overflow);
            } else if has_powers {
                spread(scales, shape.width, inverse, &mut factors);
                quantize_rows::<true, _, _>(x, &factors, form, (format, overflow), y);
            } else {
                spread(scales, shape.width, |scale| scale, &mut factors);
                quantize_rows::<false, _, _>(x, &factors, form, (format, overflow), y);
            }
        }
    }
}

/// What divides is spread over columns, so that the last loop is as long as a row: blocks are too short for vectors. A power of two is given by its
/// reciprocal, which is exact: the product with it is the quotient, bit by bit.
#[inline(always)]
fn quantize_rows<const POWERS: bool, S: Source, T>(
    x: &[S],
    factors: &[f32],
    form: impl Form<T>,
    (format, overflow): (Fp8Format, Overflow),
    y: &mut [T],
) {
    let columns = factors.len();
    for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
        for ((x, y), factor) in x.iter().zip(y).zip(factors) {
            let x = x.to_f32();
            let (quotient, scale) =
                if POWERS { (x * factor, inverse(*factor)) } else { (x / factor, *factor) };
            *y = form.of(element::round(x, quotient, format, overflow), scale);
        }
    }
}

/// The reciprocal of a power of two, exact in f32.
#[inline(always)]
fn inverse(power: f32) -> f32 {
    1.0 / power
}

/// A number for each column, from the scales of its blocks.
#[inline(always)]
pub(super) fn spread(scales: &[f32], width: usize, of: impl Fn(f32) -> f32, columns: &mut [f32]) {
    if width == 1 {
        columns.iter_mut().zip(scales).for_each(|(column, scale)| *column = of(*scale));
        return;
    }
    for (columns, scale) in columns.chunks_mut(width).zip(scales) {
        columns.fill(of(*scale));
    }
}

/// The largest finite magnitude of each block of bands.
pub(super) fn amax<S: Source>(x: &[S], shape: Shape, amaxes: &mut [f32]) {
    if shape.width >= shape.columns {
        for (x, amax) in x.chunks(shape.elements).zip(amaxes) {
            *amax = pass::amax(x).value;
        }
        return;
    }
    arch().dispatch(Measure { x, shape, amaxes });
}

struct Measure<'a, S> {
    x: &'a [S],
    shape: Shape,
    amaxes: &'a mut [f32],
}

impl<S: Source> WithSimd for Measure<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, _: A) {
        let Self { x, shape, amaxes } = self;
        let mut of_columns = vec![0f32; shape.columns];
        for (x, amaxes) in x.chunks(shape.elements).zip(amaxes.chunks_mut(shape.blocks)) {
            measure_blocks(x, shape, &mut of_columns, amaxes);
        }
    }
}

/// Of one band, with room for as many numbers as columns.
#[inline(always)]
fn measure_blocks<S: Source>(x: &[S], shape: Shape, of_columns: &mut [f32], amaxes: &mut [f32]) {
    let Shape { columns, width, .. } = shape;
    if width >= columns {
        amaxes[0] = pass::measure(x).value;
    } else if width == 1 {
        measure_columns(x, amaxes);
    } else if x.len() == columns {
        for (x, amax) in x.chunks(width).zip(amaxes) {
            *amax = largest(x);
        }
    } else {
        measure_columns(x, of_columns);
        for (of_columns, amax) in of_columns.chunks(width).zip(amaxes) {
            *amax = largest(of_columns);
        }
    }
}

#[inline(always)]
fn measure_columns<S: Source>(x: &[S], amaxes: &mut [f32]) {
    amaxes.fill(0.0);
    for row in x.chunks_exact(amaxes.len()) {
        for (x, amax) in row.iter().zip(amaxes.iter_mut()) {
            *amax = f32::from_bits(finite_magnitude(*x).max(amax.to_bits()));
        }
    }
}

/// The largest finite magnitude, 0 if there are none.
#[inline(always)]
fn largest<S: Source>(x: &[S]) -> f32 {
    let mut each = [0u32; VECTOR];
    let (vectors, rest) = x.as_chunks::<VECTOR>();
    for vector in vectors {
        for (x, each) in vector.iter().zip(&mut each) {
            *each = finite_magnitude(*x).max(*each);
        }
    }
    for (x, each) in rest.iter().zip(&mut each) {
        *each = finite_magnitude(*x).max(*each);
    }
    f32::from_bits(each.into_iter().fold(0, u32::max))
}

/// The bits of `|x|` as f32; 0 where it is not finite.
#[inline(always)]
fn finite_magnitude<S: Source>(x: S) -> u32 {
    let bits = x.to_f32().magnitude();
    if bits < f32::INFINITE { bits } else { 0 }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use burn_fp8_core::e8m0;

    /// Every bf16 number, over every scale of MXFP8, those below the range of normal numbers too.
    #[test]
    fn the_product_with_the_reciprocal_of_a_power_of_two_is_the_quotient() {
        for scale in (0..e8m0::NAN).map(e8m0::decode) {
            let reciprocal = 1.0 / scale;
            for x in (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32()) {
                let [quotient, product] = [x / scale, x * reciprocal];
                let is_same = quotient.to_bits() == product.to_bits();
                assert!(is_same || quotient.is_nan() && product.is_nan(), "{x:e} / {scale:e}");
            }
        }
    }
}
