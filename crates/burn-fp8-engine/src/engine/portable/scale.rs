//! Scales in tensor operations, without reading anything back.

use crate::host;
use burn_backend::{Backend, FloatDType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Fp8Format, Recipe, ScaleRounding, scale};

/// The magnitudes of an f32 tensor; zeros keep their sign.
///
/// Not `float_abs`: that of NdArray 0.21 with its feature `simd` mixes up the elements of a transposed tensor.
pub fn magnitude<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&tensor));
    let negative = B::float_lower_elem(tensor.clone(), 0f32.into(), settings.bool_dtype);
    let negated = B::float_neg(tensor.clone());
    B::float_mask_where(tensor, negative, negated)
}

/// The largest magnitude among the finite elements of an f32 tensor, 0 where there are none. Shape `[1]`.
pub fn amax<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let elements = Shape::new([tensor.shape().num_elements()]);
    B::float_max(B::float_reshape(finite_magnitude::<B>(tensor), elements))
}

/// The same for all elements along a dimension, which keeps the size 1.
pub fn amax_dim<B: Backend>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    B::float_max_dim(finite_magnitude::<B>(tensor), dim)
}

/// The magnitudes of an f32 tensor, 0 in place of infinities and NaN.
fn finite_magnitude<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let magnitude = magnitude::<B>(tensor);
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&magnitude));
    // The comparison is false for infinities and for NaN.
    let finite = B::float_lower_equal_elem(magnitude.clone(), f32::MAX.into(), settings.bool_dtype);
    B::float_mask_fill(magnitude, B::bool_not(finite), 0f32.into())
}

/// The largest magnitude as `max(abs(x))` of JAX and numpy has it: NaN where there is a NaN, else infinity where there is one; 0
/// where there are no elements. f32, shape `[1]`.
pub fn amax_with_non_finite<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let elements = tensor.shape().num_elements();
    let device = host::float_device::<B>(&tensor);
    if elements == 0 {
        return B::float_zeros(Shape::new([1]), &device, FloatDType::F32);
    }
    let tensor = B::float_cast(tensor, FloatDType::F32);
    let magnitude = B::float_reshape(magnitude::<B>(tensor), Shape::new([elements]));
    let settings = burn_backend::get_device_settings::<B>(&device);
    // The comparison is false for NaN only. A maximum over NaN is any backend's guess.
    let bound = f32::INFINITY.into();
    let nan = B::bool_not(B::float_lower_equal_elem(magnitude.clone(), bound, settings.bool_dtype));
    let amax = B::float_max(B::float_mask_fill(magnitude, nan.clone(), 0f32.into()));
    // Zeros may have kept their sign: -0 + 0 is 0.
    let amax = B::float_add_scalar(amax, 0f32.into());
    B::float_mask_fill(amax, B::bool_any(nan), f32::NAN.into())
}

/// As [`scale::from_amax`], element by element.
pub fn from_amax<B: Backend>(
    amax: FloatTensor<B>,
    format: Fp8Format,
    recipe: Recipe,
) -> FloatTensor<B> {
    let device = host::float_device::<B>(&amax);
    let settings = burn_backend::get_device_settings::<B>(&device);
    let zero = B::float_equal_elem(amax.clone(), 0f32.into(), settings.bool_dtype);
    // A tensor divisor: some backends turn a division by a constant into a product with its reciprocal.
    let max = B::float_full(amax.shape(), format.max().into(), &device, FloatDType::F32);
    let mut scale = B::float_div(amax, max);
    scale = B::float_mul_scalar(scale, 2f32.powi(recipe.margin).into());
    if recipe.power_of_two {
        scale = round_up_to_power_of_two::<B>(scale);
    }
    let scale = B::float_clamp(scale, scale::MIN_SCALE.into(), scale::largest(recipe).into());
    B::float_mask_fill(scale, zero, 1f32.into())
}

/// As [`e8m0::from_amax`](burn_fp8_core::e8m0::from_amax), element by element: the scales, and their reciprocals.
///
/// The scale 2^-127 is a subnormal number, which some devices take for 0. Its reciprocal is none: multiply by it.
pub fn mx<B: Backend>(
    amax: FloatTensor<B>,
    format: Fp8Format,
    rounding: ScaleRounding,
) -> [FloatTensor<B>; 2] {
    let device = host::float_device::<B>(&amax);
    let settings = burn_backend::get_device_settings::<B>(&device);
    let full = |value: f32| B::float_full(amax.shape(), value.into(), &device, FloatDType::F32);
    let power = |exponent: i32| 2f64.powi(exponent) as f32;
    let emax = format.max().log2().floor() as i32;
    // What is rounded to a power of two, its distance from the scale, and the amax up to which the scale is 2^-127.
    let (x, exponent, smallest) = match rounding {
        // A tensor divisor: some backends turn a division by a constant into a product with its reciprocal. A quotient an ulp of its
        // subnormal self above 2^-127 is rounded to that.
        ScaleRounding::Rceil => (
            B::float_div(amax.clone(), full(format.max())),
            0,
            (format.max() * power(-127)).next_up(),
        ),
        ScaleRounding::Ceil => (amax.clone(), -emax, power(emax - 127)),
        ScaleRounding::Floor => (amax.clone(), -emax, power(emax - 126).next_down()),
        ScaleRounding::Even => {
            (amax.clone(), -emax, (rounded_up_from(format) * power(emax - 127)).next_down())
        }
    };
    let [mantissa, down] = mantissa_and_power::<B>(x);
    let scale = B::float_mul_scalar(down, power(exponent).into());
    let up = match rounding {
        ScaleRounding::Floor => None,
        ScaleRounding::Rceil | ScaleRounding::Ceil => {
            Some(B::float_greater_elem(mantissa, 1f32.into(), settings.bool_dtype))
        }
        ScaleRounding::Even => Some(B::float_greater_equal_elem(
            mantissa,
            rounded_up_from(format).into(),
            settings.bool_dtype,
        )),
    };
    let scale = match up {
        Some(up) => {
            let doubled = B::float_mul_scalar(scale.clone(), 2f32.into());
            B::float_mask_where(scale, up, doubled)
        }
        None => scale,
    };
    let smallest = B::float_lower_equal_elem(amax.clone(), smallest.into(), settings.bool_dtype);
    let reciprocal = B::float_div(full(1.0), scale.clone());
    let reciprocal = B::float_mask_fill(reciprocal, smallest.clone(), power(127).into());
    [B::float_mask_fill(scale, smallest, power(-127).into()), reciprocal]
}

/// The smallest mantissa, in [1, 2), that is 2 once it is rounded to the precision of a format, halves upwards.
fn rounded_up_from(format: Fp8Format) -> f32 {
    2.0 - format.epsilon() / 2.0
}

/// The first of two amaxes, or the second where the first is 0. Shape `[1]`.
pub fn first_non_zero<B: Backend>(first: FloatTensor<B>, second: FloatTensor<B>) -> FloatTensor<B> {
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&first));
    let zero = B::float_equal_elem(first.clone(), 0f32.into(), settings.bool_dtype);
    B::float_mask_where(first, zero, second)
}

/// The two factors of [`scale::of_product`], of all pairs where `lhs` and `rhs` broadcast.
pub fn of_product<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&lhs));
    let product = B::float_mul(lhs.clone(), rhs.clone());
    let small = B::float_lower_elem(product.clone(), f32::MIN_POSITIVE.into(), settings.bool_dtype);
    let finite = B::float_lower_equal_elem(product.clone(), f32::MAX.into(), settings.bool_dtype);
    let not_normal = B::bool_or(small, B::bool_not(finite));
    let shape = product.shape();
    let expand = |scale: FloatTensor<B>| match scale.shape() == shape {
        true => scale,
        false => B::float_expand(scale, shape.clone()),
    };
    let first = B::float_mask_where(product, not_normal.clone(), expand(lhs));
    let normal = B::bool_not(not_normal);
    [first, B::float_mask_fill(expand(rhs), normal, 1f32.into())]
}

/// The smallest power of two that is at least `x`, at least 2^-126, element by element.
fn round_up_to_power_of_two<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&x));
    let [mantissa, power] = mantissa_and_power::<B>(x);
    let more = B::float_greater_elem(mantissa, 1f32.into(), settings.bool_dtype);
    let doubled = B::float_mul_scalar(power.clone(), 2f32.into());
    B::float_mask_where(power, more, doubled)
}

/// `x`, 2^-126 in place of anything smaller, as a number in [1, 2) and a power of two, element by element.
///
/// `x` is brought into [1, 2) by exact multiplications with powers of two, in descending steps; what they took out is the power.
fn mantissa_and_power<B: Backend>(x: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let device = host::float_device::<B>(&x);
    let settings = burn_backend::get_device_settings::<B>(&device);
    let power = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << 23);
    let x = B::float_clamp_min(x, scale::MIN_SCALE.into());
    // In two steps, since 2^126 · 2^127 would overflow: the rest lies in [1, 2^254) only as a pair.
    let big = B::float_greater_equal_elem(x.clone(), 1f32.into(), settings.bool_dtype);
    let small = B::bool_not(big);
    let mut rest = B::float_mask_where(
        x.clone(),
        small.clone(),
        B::float_mul_scalar(x.clone(), power(126).into()),
    );
    let ones = B::float_ones(x.shape(), &device, FloatDType::F32);
    let mut result = B::float_mask_fill(ones, small, power(-126).into());
    for step in [64, 32, 16, 8, 4, 2, 1] {
        let above =
            B::float_greater_equal_elem(rest.clone(), power(step).into(), settings.bool_dtype);
        let lowered = B::float_mul_scalar(rest.clone(), power(-step).into());
        let raised = B::float_mul_scalar(result.clone(), power(step).into());
        rest = B::float_mask_where(rest, above.clone(), lowered);
        result = B::float_mask_where(result, above, raised);
    }
    [rest, result]
}
