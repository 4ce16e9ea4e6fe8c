//! One pass over a band of rows that share the scales of blocks, compiled for each vector instruction set.

use super::element::{self, Quantized};
use super::pass::{Form, Pass};
use super::source::{Source, sealed::Sealed};
use super::widen::{VECTOR, Widen};
use crate::{Fp8Format, Overflow, Recipe, scale};

/// Rows that share scales, and where these and what is kept of the rows go.
pub(super) struct Band<'a, S, T, F> {
    pub x: &'a [S],
    /// Elements of a row.
    pub columns: usize,
    /// Columns of a block.
    pub width: usize,
    pub recipe: Recipe,
    pub form: F,
    pub y: &'a mut [T],
    pub scales: &'a mut [f32],
}

impl<S: Source, T, F: Form<T>> Pass for Band<'_, S, T, F> {
    #[inline(always)]
    fn run(self, _: impl Widen, format: Fp8Format, overflow: Overflow) {
        match self.recipe.has_powers_of_two() {
            true => self.quantize::<true>(format, overflow),
            false => self.quantize::<false>(format, overflow),
        }
    }
}

impl<S: Source, T, F: Form<T>> Band<'_, S, T, F> {
    /// What divides is spread over columns, so that the last loop is as long as a row: blocks are too short for vectors.
    #[inline(always)]
    fn quantize<const POWERS: bool>(self, format: Fp8Format, overflow: Overflow) {
        let Self { x, columns, width, recipe, form, y, scales } = self;
        let mut of_columns = vec![0f32; columns];
        if x.len() == columns {
            for (x, amax) in x.chunks(width).zip(scales.iter_mut()) {
                *amax = largest(x);
            }
        } else {
            for row in x.chunks_exact(columns) {
                for (x, amax) in row.iter().zip(&mut of_columns) {
                    *amax = f32::from_bits(finite_magnitude(*x).max(amax.to_bits()));
                }
            }
            match width {
                1 => scales.copy_from_slice(&of_columns),
                width => {
                    for (amaxes, amax) in of_columns.chunks(width).zip(scales.iter_mut()) {
                        *amax = largest(amaxes);
                    }
                }
            }
        }
        scale::of_blocks(scales, format, recipe);
        match width {
            1 => {
                for (factor, scale) in of_columns.iter_mut().zip(scales.iter()) {
                    *factor = inverse::<POWERS>(*scale);
                }
            }
            width => {
                for (factors, scale) in of_columns.chunks_mut(width).zip(scales.iter()) {
                    factors.fill(inverse::<POWERS>(*scale));
                }
            }
        }
        for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
            for ((x, y), factor) in x.iter().zip(y).zip(&of_columns) {
                let quantized = scaled::<POWERS>(x.to_f32(), *factor, format, overflow);
                *y = form.of(quantized, inverse::<POWERS>(*factor));
            }
        }
    }
}

/// The reciprocal of a power of two, exact in f32; else the number itself. Its own inverse.
#[inline(always)]
fn inverse<const POWERS: bool>(scale: f32) -> f32 {
    if POWERS { 1.0 / scale } else { scale }
}

/// `x` divided by a scale: its reciprocal is given where it is a power of two, so that the product is the quotient, bit by bit.
#[inline(always)]
fn scaled<const POWERS: bool>(
    x: f32,
    factor: f32,
    format: Fp8Format,
    overflow: Overflow,
) -> Quantized {
    let quotient = if POWERS { x * factor } else { x / factor };
    element::round(x, quotient, format, overflow)
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

    use crate::e8m0;

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
