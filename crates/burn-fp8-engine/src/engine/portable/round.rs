//! Rounding to the values of a format, in tensor operations.

use burn_backend::{Backend, BoolDType, FloatDType, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Fp8Format, Overflow};

use super::scale;
use crate::host;

/// Rounds `x = input / scale`, f32, to the values of a format: to nearest, ties to even. Where the input is NaN the result is. Zeros keep
/// their sign.
///
/// The distance between neighbouring values (the quantum) is a power of two that depends on the exponent, so dividing by it is
/// exact. Rounding uses `floor` and comparisons only:
/// what `round` does with ties differs between backends, and the usual trick of adding and subtracting a large number does
/// not survive compilers that rearrange floats.
pub(super) fn round<B: Backend>(
    x: FloatTensor<B>,
    input: FloatTensor<B>,
    format: Fp8Format,
    overflow: Overflow,
) -> FloatTensor<B> {
    let bool_dtype =
        burn_backend::get_device_settings::<B>(&host::float_device::<B>(&x)).bool_dtype;
    let clipped = B::float_clamp_max(scale::magnitude::<B>(x.clone()), format.max().into());
    let (steps, quanta) = in_quanta::<B>(clipped, format, bool_dtype);
    let floor = B::float_floor(steps.clone());
    let fraction = B::float_sub(steps, floor.clone());
    let half_floor = B::float_mul_scalar(floor.clone(), 0.5f32.into());
    let odd = B::float_not_equal(half_floor.clone(), B::float_floor(half_floor), bool_dtype);
    let above = B::float_greater_elem(fraction.clone(), 0.5f32.into(), bool_dtype);
    let tie = B::float_equal_elem(fraction, 0.5f32.into(), bool_dtype);
    let up = B::bool_or(above, B::bool_and(tie, odd));
    let next = B::float_add_scalar(floor.clone(), 1f32.into());
    let rounded = B::float_mul(B::float_mask_where(floor, up, next), quanta);

    let negative = B::float_lower_elem(x.clone(), 0f32.into(), bool_dtype);
    let negated = B::float_neg(rounded.clone());
    let signed = B::float_mask_where(rounded, negative, negated);
    let zero = B::float_equal_elem(x.clone(), 0f32.into(), bool_dtype);
    let signed = B::float_mask_where(signed, zero, x.clone());

    // The comparison is false for NaN, and for infinities where they are excluded.
    let largest = match overflow {
        Overflow::Saturate => f32::INFINITY,
        Overflow::SaturateFinite | Overflow::NonSaturating => f32::MAX,
    };
    let magnitude = scale::magnitude::<B>(input.clone());
    let kept = B::float_lower_equal_elem(magnitude, largest.into(), bool_dtype);
    let non_finite = B::bool_not(kept);
    let values = match format {
        Fp8Format::E4M3 => B::float_mask_fill(signed, non_finite, f32::NAN.into()),
        Fp8Format::E5M2 => B::float_mask_where(signed, non_finite, input),
    };
    match (overflow, format) {
        (Overflow::Saturate | Overflow::SaturateFinite, _) => values,
        // Half a step beyond the largest number, which is even in E4M3 and odd in E5M2.
        (Overflow::NonSaturating, Fp8Format::E4M3) => {
            let magnitude = scale::magnitude::<B>(x);
            let beyond = B::float_greater_elem(magnitude, 464f32.into(), bool_dtype);
            B::float_mask_fill(values, beyond, f32::NAN.into())
        }
        (Overflow::NonSaturating, Fp8Format::E5M2) => {
            let magnitude = scale::magnitude::<B>(x.clone());
            let beyond = B::float_greater_equal_elem(magnitude, 61440f32.into(), bool_dtype);
            B::float_mask_where(values, beyond, B::float_mul_scalar(x, f32::INFINITY.into()))
        }
    }
}

/// Every magnitude in units of its quantum, and the quantum. All operations are exact.
///
/// Divides by powers of two, in descending steps, until what is left lies in [1, 2): the mantissa. Subnormals have the quantum of the
/// smallest normal numbers.
fn in_quanta<B: Backend>(
    magnitude: FloatTensor<B>,
    format: Fp8Format,
    bool_dtype: BoolDType,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let device = host::float_device::<B>(&magnitude);
    let normal = format.min_positive_normal();
    let smallest = format.min_positive_subnormal();
    let subnormal = B::float_lower_elem(magnitude.clone(), normal.into(), bool_dtype);
    let in_smallest = B::float_mul_scalar(magnitude.clone(), (1.0 / smallest).into());

    let mut mantissa = B::float_mul_scalar(magnitude.clone(), (1.0 / normal).into());
    let mut quanta = B::float_full(magnitude.shape(), smallest.into(), &device, FloatDType::F32);
    // Exponents span less than 2^exponent_bits; the largest step is half of that.
    for step in (0..format.exponent_bits()).rev().map(|bit| 2f32.powi(1 << bit)) {
        let above = B::float_greater_equal_elem(mantissa.clone(), step.into(), bool_dtype);
        let lowered = B::float_mul_scalar(mantissa.clone(), (1.0 / step).into());
        let raised = B::float_mul_scalar(quanta.clone(), step.into());
        mantissa = B::float_mask_where(mantissa, above.clone(), lowered);
        quanta = B::float_mask_where(quanta, above, raised);
    }
    let steps = B::float_mul_scalar(mantissa, (1.0 / format.epsilon()).into());
    (B::float_mask_where(steps, subnormal, in_smallest), quanta)
}
