//! From an amax to a scale.
//!
//! `scale = (amax / max) × 2^margin`, rounded up to a power of two if the recipe says so, then clamped to
//! [`MIN_SCALE`] and [`largest`]; 1 where amax is 0. All in f32. TransformerEngine and torchao store the reciprocal; here a
//! scale is always the dequantization multiplier, `x ≈ code × scale`.

use crate::format::power_of_two;
use crate::{Fp8Format, Granularity, Recipe, ScaleRounding, e8m0};

/// The smallest scale: the smallest normal f32, 2^-126. Smaller ones would be flushed to zero on some devices.
pub const MIN_SCALE: f32 = f32::MIN_POSITIVE;

/// The largest scale: the largest finite f32.
pub const MAX_SCALE: f32 = f32::MAX;

/// The scale of a tensor whose largest finite magnitude is `amax`.
///
/// `amax` must be finite and not negative; 0 (also: an empty tensor, or one without finite elements) gives 1.
#[inline]
pub fn from_amax(amax: f32, format: Fp8Format, recipe: Recipe) -> f32 {
    debug_assert!(amax.is_finite() && amax >= 0.0, "amax = {amax} is not a finite magnitude");
    if amax == 0.0 {
        return 1.0;
    }
    let scale = amax / format.max() * power_of_two(recipe.margin);
    let scale = if recipe.power_of_two { round_up_to_power_of_two(scale) } else { scale };
    scale.clamp(MIN_SCALE, largest(recipe))
}

/// The scale of a block, or of a tensor, whose largest finite magnitude is `amax`: that of [`e8m0::from_amax`] where the recipe is MXFP8, else
/// that of [`from_amax`].
#[inline]
pub fn of_block(amax: f32, format: Fp8Format, recipe: Recipe) -> f32 {
    match recipe.granularity() {
        Granularity::Mx(rounding) => e8m0::decode(e8m0::from_amax(amax, format, rounding)),
        _ => from_amax(amax, format, recipe),
    }
}

/// The scales of several blocks, in place of their amaxes: [`of_block`] of each, in a loop without branches where there is one.
#[inline(always)]
pub fn of_blocks(amaxes: &mut [f32], format: Fp8Format, recipe: Recipe) {
    let max = format.max();
    match recipe.granularity() {
        Granularity::Mx(ScaleRounding::Rceil) => {
            amaxes.iter_mut().for_each(|x| *x = e8m0::round_up(*x / max));
        }
        _ => amaxes.iter_mut().for_each(|x| *x = of_block(*x, format, recipe)),
    }
}

/// The largest scale of a recipe: [`MAX_SCALE`], or the largest power of two.
#[inline]
pub fn largest(recipe: Recipe) -> f32 {
    if recipe.power_of_two { power_of_two(127) } else { MAX_SCALE }
}

/// The two factors that a GEMM of codes is multiplied by, one after the other: the product of both scales, then 1; or, where that
/// product is not a normal f32, each scale by itself.
///
/// A product that overflows would turn sums of zero into NaN, and one that underflows would lose results that f32 can hold.
#[inline]
pub fn of_product(lhs: f32, rhs: f32) -> [f32; 2] {
    let product = lhs * rhs;
    if product.is_normal() { [product, 1.0] } else { [lhs, rhs] }
}

/// The smallest power of two that is at least `x`, for `x ≥ 0`; 2^-126 for anything smaller, infinity past 2^127.
#[inline]
fn round_up_to_power_of_two(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    let bits = x.max(MIN_SCALE).to_bits();
    f32::from_bits((bits + MANTISSA) & !MANTISSA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_amax_gives_one() {
        assert_eq!(from_amax(0.0, Fp8Format::E4M3, Recipe::current().with_margin(3)), 1.0);
    }

    #[test]
    fn the_amax_maps_to_the_largest_code() {
        let scale = |amax| from_amax(amax, Fp8Format::E4M3, Recipe::current());
        assert_eq!(scale(448.0), 1.0);
        assert_eq!(scale(3.0), 3.0 / 448.0);
        let e5m2 = from_amax(57344.0, Fp8Format::E5M2, Recipe::current().with_margin(2));
        assert_eq!(e5m2, 4.0);
    }

    #[test]
    fn scales_stay_normal_and_finite() {
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            for margin in [-64, 0, 64] {
                for power_of_two in [false, true] {
                    let recipe =
                        Recipe::current().with_margin(margin).with_power_of_two(power_of_two);
                    for amax in [f32::from_bits(1), 1e-40, 1.0, f32::MAX] {
                        let scale = from_amax(amax, format, recipe);
                        assert!(scale.is_normal() && scale > 0.0, "{format} {recipe:?} {amax}");
                        let is_power = scale.to_bits() & 0x7f_ffff == 0;
                        assert!(is_power || !power_of_two, "{format} {recipe:?} {amax}");
                    }
                }
            }
        }
    }

    #[test]
    fn powers_of_two_are_rounded_up() {
        let recipe = Recipe::current().with_power_of_two(true);
        assert_eq!(from_amax(448.0, Fp8Format::E4M3, recipe), 1.0);
        assert_eq!(from_amax(448.1, Fp8Format::E4M3, recipe), 2.0);
        assert_eq!(from_amax(225.0, Fp8Format::E4M3, recipe), 1.0);
        // Exhaustive over the exponents: the result is a power of two, and the next smaller one is below the exact scale.
        for exponent in 1..254u32 {
            let exact = f32::from_bits((exponent << 23) | 0x12345);
            let rounded = round_up_to_power_of_two(exact);
            assert_eq!(rounded.to_bits() & 0x7f_ffff, 0);
            assert!(rounded >= exact && rounded * 0.5 < exact);
        }
    }

    #[test]
    fn extreme_scales_are_applied_one_after_the_other() {
        assert_eq!(of_product(2.0, 3.0), [6.0, 1.0]);
        assert_eq!(of_product(1e30, 1e-30), [1e30 * 1e-30, 1.0]);
        assert_eq!(of_product(1e30, 1e20), [1e30, 1e20]);
        assert_eq!(of_product(1e-23, 5e-24), [1e-23, 5e-24]);
    }
}
