//! The division by the scale.

use cubecl::prelude::*;

use super::units::Quad;

/// How a division is carried out. The results are the same, bit for bit, wherever they matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Division {
    /// The operator: exact where the device divides as IEEE 754 has it.
    Operator,
    /// With the reciprocal of the scale, taken once, and two corrections by fused multiply-adds; the operator where the scale is
    /// too small or too large for that. Needs a device that fuses with one rounding, as CUDA's do.
    ///
    /// NVRTC expands each division by itself: a reciprocal, a check and a branch for every element. This takes five
    /// instructions.
    Reciprocal,
    /// Multiplies by the reciprocal, for scales that are powers of two: the product is the quotient, bit for bit.
    PowerOfTwo,
}

impl Division {
    /// The way that suits a runtime, for any scale.
    pub(crate) fn of<R: Runtime>(client: &ComputeClient<R>) -> Self {
        match R::name(client) {
            "cuda" => Self::Reciprocal,
            _ => Self::Operator,
        }
    }
}

/// Scales of four elements, prepared for divisions by them.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Divisor {
    scale: Vector<f32, Const<4>>,
    /// CubeCL has no sign change of vectors in CUDA C++.
    negative: Vector<f32, Const<4>>,
    reciprocal: Vector<f32, Const<4>>,
    in_range: bool,
}

/// 2^-80, the smallest scale for [`Division::Reciprocal`].
const SMALLEST: u32 = (127 - 80) << 23;
/// The distance from there to 2^100, in bits.
const RANGE: u32 = 180 << 23;
/// 2^-127, a subnormal number.
const HALF_OF_SMALLEST: u32 = 1 << 22;

/// Prepares a scale that all elements share: positive, normal, finite. A power of two may also be 2^-127.
#[cube]
pub(crate) fn divisor(scale: f32, #[comptime] division: Division) -> Divisor {
    let reciprocal = reciprocal_of(scale, division);
    let in_range = is_in_range(scale, division);
    Divisor {
        scale: Vector::new(scale),
        negative: Vector::new(-scale),
        reciprocal: Vector::new(reciprocal),
        in_range,
    }
}

/// Prepares four scales.
#[cube]
pub(crate) fn divisor_of_each(
    scale: Vector<f32, Const<4>>,
    #[comptime] division: Division,
) -> Divisor {
    let mut negative = Vector::<f32, Const<4>>::empty();
    let mut reciprocal = Vector::<f32, Const<4>>::empty();
    let mut in_range = true.runtime();
    #[unroll]
    for i in 0..4usize {
        negative[i] = -scale[i];
        reciprocal[i] = reciprocal_of(scale[i], division);
        in_range = in_range && is_in_range(scale[i], division);
    }
    Divisor { scale, negative, reciprocal, in_range }
}

/// The reciprocal, where the division needs one.
#[cube]
fn reciprocal_of(scale: f32, #[comptime] division: Division) -> f32 {
    match division {
        Division::Operator => scale,
        Division::Reciprocal => 1.0f32 / scale,
        Division::PowerOfTwo => {
            // The exponent with its sign changed. That of 2^127 is subnormal, and so is that of 2^-127, whose bits have none.
            let exponent = comptime!(254u32).runtime() - (u32::reinterpret(scale) >> 23);
            f32::reinterpret(select(exponent == 0, HALF_OF_SMALLEST, exponent << 23))
        }
    }
}

/// Whether [`corrected`] divides by a scale.
#[cube]
fn is_in_range(scale: f32, #[comptime] division: Division) -> bool {
    if comptime!(division == Division::Reciprocal) {
        u32::reinterpret(scale) - SMALLEST <= RANGE
    } else {
        true.runtime()
    }
}

/// The bits of `magnitude / scale`, clipped to `limit`, a float; infinity and NaN, and quotients that overflow, are clipped as well.
#[cube]
pub(crate) fn divide(
    magnitude: Quad,
    divisor: &Divisor,
    #[comptime] limit: f32,
    #[comptime] division: Division,
) -> Quad {
    let x = Vector::<f32, Const<4>>::reinterpret(magnitude);
    if comptime!(division == Division::Reciprocal) {
        if divisor.in_range {
            let quotient = corrected(x, divisor.negative, divisor.reciprocal);
            let limit = Vector::<f32, Const<4>>::new(limit.runtime());
            // CUDA's minimum is the other number where one is NaN, and takes the magnitude at no cost.
            Quad::reinterpret(min(quotient.abs(), limit))
        } else {
            clip(x / divisor.scale, limit)
        }
    } else if comptime!(division == Division::PowerOfTwo) {
        clip(x * divisor.reciprocal, limit)
    } else {
        clip(x / divisor.scale, limit)
    }
}

/// The order of non-negative floats is that of their bits, and NaN, whatever its sign, comes after infinity.
#[cube]
fn clip(quotient: Vector<f32, Const<4>>, #[comptime] limit: f32) -> Quad {
    min(Quad::reinterpret(quotient), Quad::new(comptime!(limit.to_bits()).runtime()))
}

/// `x / scale` by Markstein's theorem: with the correctly rounded reciprocal `r`, and `q` within a unit in the last place of the
/// quotient, `q + (x - q·scale)·r` is the quotient correctly rounded, where nothing underflows. The product `x·r` may be 1.5
/// units off; after one correction it is not.
///
/// With a scale of at least 2^-80, whatever underflows has a quotient below 2^-18, whose code is zero in both formats, and stays
/// there. (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990.)
#[cube]
fn corrected(
    x: Vector<f32, Const<4>>,
    negative: Vector<f32, Const<4>>,
    reciprocal: Vector<f32, Const<4>>,
) -> Vector<f32, Const<4>> {
    let quotient = x * reciprocal;
    let quotient = fma(fma(negative, quotient, x), reciprocal, quotient);
    fma(fma(negative, quotient, x), reciprocal, quotient)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`corrected`] on the host, whose fused multiply-adds have one rounding.
    fn corrected_on_host(x: f32, scale: f32) -> f32 {
        let r = 1.0 / scale;
        let quotient = x * r;
        let quotient = (-scale).mul_add(quotient, x).mul_add(r, quotient);
        (-scale).mul_add(quotient, x).mul_add(r, quotient)
    }

    /// Equal quotients, or ones that are alike to every format: both overflow, or both are far below half the smallest number.
    fn check(x: f32, scale: f32) {
        let (exact, found) = (x / scale, corrected_on_host(x, scale));
        let tiny = 2f32.powi(-18);
        let same = if exact < tiny {
            (0.0..=tiny).contains(&found) && found.is_sign_positive()
        } else if exact > f32::MAX * 0.5 {
            found.to_bits() > 1e30f32.to_bits()
        } else {
            found.to_bits() == exact.to_bits()
        };
        assert!(same, "{x:e} / {scale:e} = {exact:e}, not {found:e}");
    }

    fn random(state: &mut u64) -> u32 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as u32
    }

    #[test]
    fn two_corrections_round_like_a_division() {
        let mut state = 1;
        // Mantissas at random, and those next to powers of two, with all exponents that there are for a scale.
        let special = [0, 1, 2, 3, 0x40_0000, 0x7F_FFFD, 0x7F_FFFE, 0x7F_FFFF];
        for exponent in (SMALLEST >> 23)..=(SMALLEST + RANGE) >> 23 {
            for i in 0..3000 {
                let mantissa = |n: usize, state: &mut u64| match special.get(n % 16) {
                    Some(mantissa) => *mantissa,
                    None => random(state) & 0x7F_FFFF,
                };
                let scale_mantissa = mantissa(i, &mut state);
                let scale = f32::from_bits((exponent << 23) | scale_mantissa);
                if scale.to_bits() - SMALLEST > RANGE {
                    continue;
                }
                let x_mantissa = mantissa(i / 16, &mut state);
                // Most quotients are in the range of the formats, the others anywhere.
                let x_exponent = match i % 3 {
                    0 => random(&mut state) % 255,
                    _ => (exponent + random(&mut state) % 40).saturating_sub(20).min(254),
                };
                check(f32::from_bits((x_exponent << 23) | x_mantissa), scale);
            }
        }
    }

    #[test]
    fn quotients_beside_the_middle_of_two_floats() {
        // The hardest cases: x is the product, rounded, of a scale and a number halfway between two floats.
        let mut state = 7;
        for _ in 0..500_000 {
            let scale = f32::from_bits((127 << 23) | (random(&mut state) & 0x7F_FFFF));
            let middle = f64::from(f32::from_bits((127 << 23) | (random(&mut state) & 0x7F_FFFF)))
                + 2f64.powi(-24);
            let x = (middle * f64::from(scale)) as f32;
            for x in [x.next_down(), x, x.next_up()] {
                check(x, scale);
            }
        }
    }
}
