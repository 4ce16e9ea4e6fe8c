//! The division by the scale.

use cubecl::prelude::*;

use super::Quad;

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
}

impl Division {
    /// The way that suits a runtime.
    pub(crate) fn of<R: Runtime>(client: &ComputeClient<R>) -> Self {
        match R::name(client) {
            "cuda" => Self::Reciprocal,
            _ => Self::Operator,
        }
    }
}

/// A scale, prepared for divisions by it.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Divisor {
    scale: f32,
    reciprocal: f32,
    in_range: bool,
}

/// 2^-80, the smallest scale for [`Division::Reciprocal`].
const SMALLEST: u32 = (127 - 80) << 23;
/// The distance from there to 2^100, in bits.
const RANGE: u32 = 180 << 23;

/// Prepares a scale: positive, normal, finite.
#[cube]
pub(crate) fn divisor(scale: f32, #[comptime] division: Division) -> Divisor {
    if comptime!(division == Division::Reciprocal) {
        let reciprocal = 1.0f32 / scale;
        let in_range = u32::reinterpret(scale) - SMALLEST <= RANGE;
        Divisor { scale, reciprocal, in_range }
    } else {
        Divisor { scale, reciprocal: 1.0f32, in_range: true }
    }
}

/// The bits of `magnitude / scale`. Infinity and NaN, and quotients that overflow, give something at or above infinity.
#[cube]
pub(crate) fn divide(magnitude: Quad, divisor: &Divisor, #[comptime] division: Division) -> Quad {
    let x = Vector::<f32, Const<4>>::reinterpret(magnitude);
    let scale = Vector::<f32, Const<4>>::new(divisor.scale);
    if comptime!(division == Division::Reciprocal) {
        if divisor.in_range {
            Quad::reinterpret(corrected(x, divisor.scale, divisor.reciprocal))
        } else {
            Quad::reinterpret(x / scale)
        }
    } else {
        Quad::reinterpret(x / scale)
    }
}

/// `x / scale` by Markstein's theorem: with the correctly rounded reciprocal `r`, and `q` within a unit in the last place of the
/// quotient, `q + (x - q·scale)·r` is the quotient correctly rounded, where nothing underflows. The product `x·r` may be 1.5
/// units off; after one correction it is not.
///
/// With a scale of at least 2^-80, whatever underflows has a quotient below 2^-18, whose code is zero in both formats, and stays
/// there. (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990.)
#[cube]
fn corrected(x: Vector<f32, Const<4>>, scale: f32, reciprocal: f32) -> Vector<f32, Const<4>> {
    let r = Vector::<f32, Const<4>>::new(reciprocal);
    let negative = Vector::<f32, Const<4>>::new(-scale);
    let quotient = x * r;
    let quotient = fma(fma(negative, quotient, x), r, quotient);
    fma(fma(negative, quotient, x), r, quotient)
}
