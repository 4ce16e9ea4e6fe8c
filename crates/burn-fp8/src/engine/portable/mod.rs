//! Quantization in tensor operations, for backends that have nothing faster.
//!
//! Bit-equal to [`burn_fp8_core::slice`], but for sign and payload of NaN, where division and the comparisons used here are IEEE's.

pub(crate) mod blocks;
pub(crate) mod epilogue;
pub(crate) mod scale;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{
    BoolDType, DType, FloatDType, IntDType, Shape, Slice, TensorData, TensorMetadata,
};
use burn_fp8_core::{Fp8Format, Overflow};

use crate::engine::codes::CodesPrimitive;
use crate::engine::quantize::{Quantize, Quantized, ScaleRule};
use crate::engine::scalar::Scalar;

pub(crate) fn quantize<B: Backend>(tensor: FloatTensor<B>, request: Quantize<B>) -> Quantized<B> {
    let tensor = match tensor.dtype() {
        DType::F32 => tensor,
        _ => B::float_cast(tensor, FloatDType::F32),
    };
    let Quantize { format, scale, save } = request;
    let (scale, amax, overflow) = choose_scale::<B>(&tensor, format, scale);
    let divisor = B::float_reshape(
        scale.on_device(&B::float_device(&tensor)),
        Shape::from(vec![1; tensor.rank()]),
    );
    let quotient = B::float_div(tensor.clone(), divisor);
    let values = match overflow {
        Overflow::Saturate => round::<B>(quotient.clone(), quotient, format, Infinite::Saturates),
        _ => round::<B>(quotient, tensor, format, Infinite::StaysVisible),
    };
    Quantized {
        codes: save.then(|| CodesPrimitive::Values(values.clone())),
        values,
        scale,
        amax: amax.map(Scalar::Device),
        format,
    }
}

/// The scale of an f32 tensor, its amax where that was measured, and the treatment of overflow.
fn choose_scale<B: Backend>(
    tensor: &FloatTensor<B>,
    format: Fp8Format,
    rule: ScaleRule<B>,
) -> (Scalar<B>, Option<FloatTensor<B>>, Overflow) {
    let (from, recipe) = match rule {
        ScaleRule::Given(scale, overflow) => return (scale, None, overflow),
        ScaleRule::Current(recipe) => (None, recipe),
        ScaleRule::Delayed(Scalar::Host(0.0), recipe) => (None, recipe),
        ScaleRule::Delayed(amax, recipe) => (Some(amax), recipe),
    };
    let amax = scale::amax::<B>(tensor.clone());
    let scale = match from {
        Some(Scalar::Host(amax)) => {
            Scalar::Host(burn_fp8_core::scale::from_amax(amax, format, recipe))
        }
        Some(Scalar::Device(from)) => {
            let from = scale::first_non_zero::<B>(from, amax.clone());
            Scalar::Device(scale::from_amax::<B>(from, format, recipe))
        }
        None => Scalar::Device(scale::from_amax::<B>(amax.clone(), format, recipe)),
    };
    (scale, Some(amax), Overflow::SaturateFinite)
}

/// How many finite elements of a tensor, divided by the scale, are beyond the largest number of the format. Shape `[1]`.
pub(crate) fn count_saturated<B: Backend>(
    tensor: &FloatTensor<B>,
    scale: &Scalar<B>,
    format: Fp8Format,
) -> IntTensor<B> {
    let scale = scale.on_device(&B::float_device(tensor));
    let divisor = B::float_reshape(scale, Shape::from(vec![1; tensor.rank()]));
    count_saturated_by::<B>(tensor, divisor, format)
}

/// The same with scales that broadcast against the tensor.
pub(crate) fn count_saturated_by<B: Backend>(
    tensor: &FloatTensor<B>,
    divisor: FloatTensor<B>,
    format: Fp8Format,
) -> IntTensor<B> {
    let tensor = B::float_cast(tensor.clone(), FloatDType::F32);
    let settings = burn::tensor::get_device_settings::<B>(&B::float_device(&tensor));
    let magnitude = scale::magnitude::<B>(tensor);
    let finite = B::float_lower_equal_elem(magnitude.clone(), f32::MAX.into(), settings.bool_dtype);
    let quotient = B::float_div(magnitude, divisor);
    let bound = format.saturates_beyond().into();
    let beyond = B::float_greater_elem(quotient, bound, settings.bool_dtype);
    let saturated = B::bool_and(beyond, finite);
    B::int_sum(B::bool_into_int(saturated, settings.int_dtype))
}

pub(crate) fn values<B: Backend>(codes: CodesPrimitive<B>) -> FloatTensor<B> {
    match codes {
        CodesPrimitive::Values(values) => values,
        CodesPrimitive::Bytes(codes, format) => {
            let shape = codes.shape();
            look_up::<B>(codes, shape, format)
        }
        CodesPrimitive::Packed(words, shape, format) => {
            let codes = unpack::<B>(words, shape.num_elements());
            look_up::<B>(codes, shape, format)
        }
    }
}

/// The codes in i32 words with four of them each, the first in the lowest byte.
fn unpack<B: Backend>(words: IntTensor<B>, elements: usize) -> IntTensor<B> {
    let len = words.shape().num_elements();
    let word = B::int_reshape(words, Shape::new([len, 1]));
    let bytes = (0..4).map(|byte| {
        let shifted = B::bitwise_right_shift_scalar(word.clone(), (8 * byte).into());
        B::bitwise_and_scalar(shifted, 0xFF.into())
    });
    let codes = B::int_reshape(B::int_cat(bytes.collect(), 1), Shape::new([4 * len]));
    B::int_slice(codes, &[Slice::new(0, Some(elements as isize), 1)])
}

/// The inverse of [`unpack`]: codes `[n]` in i32 become words.
fn pack<B: Backend>(codes: IntTensor<B>) -> IntTensor<B> {
    let elements = codes.shape().num_elements();
    let words = elements.div_ceil(4);
    let device = B::int_device(&codes);
    let codes = match 4 * words - elements {
        0 => codes,
        spare => {
            let zeros = B::int_zeros(Shape::new([spare]), &device, IntDType::I32);
            B::int_cat(vec![codes, zeros], 0)
        }
    };
    let codes = B::int_reshape(codes, Shape::new([words, 4]));
    let byte = |byte: isize| {
        let column = [Slice::full(), Slice::new(byte, Some(byte + 1), 1)];
        let codes = B::int_slice(codes.clone(), &column);
        let codes = match byte {
            // The highest byte has the sign of the word: some backends do not let a shift change it.
            3 => {
                let flipped = B::bitwise_xor_scalar(codes, 0x80.into());
                B::int_sub_scalar(flipped, 0x80.into())
            }
            _ => codes,
        };
        B::bitwise_left_shift_scalar(codes, (8 * byte as i32).into())
    };
    let packed = (1..4).fold(byte(0), |word, index| B::bitwise_or(word, byte(index)));
    B::int_reshape(packed, Shape::new([words]))
}

/// Codes of one byte each in place of values, where the device has u8. Nothing is read back.
pub(crate) fn compact<B: Backend>(
    codes: CodesPrimitive<B>,
    format: Fp8Format,
) -> CodesPrimitive<B> {
    match codes {
        CodesPrimitive::Values(values)
            if B::supports_dtype(&B::float_device(&values), DType::U8)
                && values.shape().num_elements() > 0 =>
        {
            CodesPrimitive::Bytes(encode::<B>(values, format), format)
        }
        codes => codes,
    }
}

/// The codes of numbers of a format, u8. NaN has the code that [`Fp8Format::encode`] gives it, without a sign.
///
/// Magnitudes ascend with their codes, so each bit of a code, from the highest one, is set where the magnitude is not below the number
/// that the bits so far and this one stand for. NaN numbers are not: the comparison is false.
fn encode<B: Backend>(values: FloatTensor<B>, format: Fp8Format) -> IntTensor<B> {
    let (device, shape) = (B::float_device(&values), values.shape());
    let settings = burn::tensor::get_device_settings::<B>(&device);
    let flat = Shape::new([shape.num_elements()]);
    let values = B::float_reshape(values, flat.clone());
    let magnitude = scale::magnitude::<B>(values.clone());
    let table: Vec<f32> = (0..0x80).map(|code| format.decode(code)).collect();
    let table = B::float_from_data(TensorData::new(table, [0x80]), &device);
    let mut codes = B::int_zeros(flat, &device, settings.int_dtype);
    for bit in (0..7).rev().map(|bit| 1 << bit) {
        let with_bit = B::int_add_scalar(codes.clone(), bit.into());
        let bound = B::float_select(table.clone(), 0, with_bit.clone());
        let set = B::float_greater_equal(magnitude.clone(), bound, settings.bool_dtype);
        codes = B::int_mask_where(codes, set, with_bit);
    }
    let number = B::float_lower_equal_elem(magnitude, f32::INFINITY.into(), settings.bool_dtype);
    let nan = format.encode(f32::NAN, Overflow::NonSaturating) & 0x7F;
    codes = B::int_mask_fill(codes, B::bool_not(number), i32::from(nan).into());
    // A zero has its sign in its reciprocal.
    let zero = B::float_equal_elem(values.clone(), 0f32.into(), settings.bool_dtype);
    let signed = B::float_mask_where(values.clone(), zero, B::float_recip(values));
    let negative = B::float_lower_elem(signed, 0f32.into(), settings.bool_dtype);
    let negated = B::int_add_scalar(codes.clone(), 0x80.into());
    let codes = B::int_mask_where(codes, negative, negated);
    B::int_reshape(B::int_cast(codes, IntDType::U8), shape)
}

/// The codes of the transpose of a matrix.
pub(crate) fn transpose<B: Backend>(codes: CodesPrimitive<B>) -> CodesPrimitive<B> {
    match codes {
        CodesPrimitive::Bytes(codes, format) => {
            CodesPrimitive::Bytes(B::int_transpose(codes), format)
        }
        CodesPrimitive::Values(values) => CodesPrimitive::Values(B::float_transpose(values)),
        CodesPrimitive::Packed(words, shape, format) => {
            let [rows, columns] = shape.dims();
            let transposed = Shape::new([columns, rows]);
            if shape.num_elements() == 0 {
                return CodesPrimitive::Packed(words, transposed, format);
            }
            let codes = B::int_reshape(unpack::<B>(words, shape.num_elements()), shape);
            let elements = Shape::new([rows * columns]);
            let codes = B::int_reshape(B::int_transpose(codes), elements);
            CodesPrimitive::Packed(pack::<B>(codes), transposed, format)
        }
    }
}

/// The numbers of codes of any integer type.
fn look_up<B: Backend>(codes: IntTensor<B>, shape: Shape, format: Fp8Format) -> FloatTensor<B> {
    let device = B::int_device(&codes);
    if shape.num_elements() == 0 {
        return B::float_zeros(shape, &device, FloatDType::F32);
    }
    let indices = match B::supports_dtype(&device, DType::I32) {
        true => IntDType::I32,
        false => burn::tensor::get_device_settings::<B>(&device).int_dtype,
    };
    let codes = B::int_reshape(codes, Shape::new([shape.num_elements()]));
    let table: Vec<f32> = (0..=u8::MAX).map(|code| format.decode(code)).collect();
    let table = B::float_from_data(TensorData::new(table, [256]), &device);
    B::float_reshape(B::float_select(table, 0, B::int_cast(codes, indices)), shape)
}

pub(crate) fn rescale<B: Backend>(
    tensor: FloatTensor<B>,
    lhs: &Scalar<B>,
    rhs: &Scalar<B>,
) -> FloatTensor<B> {
    let device = B::float_device(&tensor);
    let shape = Shape::from(vec![1; tensor.rank()]);
    let [lhs, rhs] =
        [lhs, rhs].map(|scale| B::float_reshape(scale.on_device(&device), shape.clone()));
    rescale_by::<B>(tensor, lhs, rhs)
}

/// Multiplies a tensor by scales that broadcast against it.
pub(crate) fn rescale_by<B: Backend>(
    tensor: FloatTensor<B>,
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
) -> FloatTensor<B> {
    scale::of_product::<B>(lhs, rhs).into_iter().fold(tensor, B::float_mul)
}

/// What becomes of an infinite input.
#[derive(Clone, Copy, PartialEq)]
enum Infinite {
    /// The largest number.
    Saturates,
    /// NaN in E4M3, infinite in E5M2.
    StaysVisible,
}

/// Rounds `x = input / scale`, f32, to the values of a format: to nearest, ties to even, saturating. Where the input is NaN the
/// result is. Zeros keep their sign.
///
/// The distance between neighbouring values (the quantum) is a power of two that depends on the exponent, so dividing by it is
/// exact. Rounding uses `floor` and comparisons only:
/// what `round` does with ties differs between backends, and the usual trick of adding and subtracting a large number does
/// not survive compilers that rearrange floats.
fn round<B: Backend>(
    x: FloatTensor<B>,
    input: FloatTensor<B>,
    format: Fp8Format,
    infinite: Infinite,
) -> FloatTensor<B> {
    let bool_dtype = burn::tensor::get_device_settings::<B>(&B::float_device(&x)).bool_dtype;
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
    let signed = B::float_mask_where(signed, zero, x);

    // The comparison is false for NaN, and for infinities where they are excluded.
    let largest = match infinite {
        Infinite::Saturates => f32::INFINITY,
        Infinite::StaysVisible => f32::MAX,
    };
    let magnitude = scale::magnitude::<B>(input.clone());
    let kept = B::float_lower_equal_elem(magnitude, largest.into(), bool_dtype);
    let non_finite = B::bool_not(kept);
    match format {
        Fp8Format::E4M3 => B::float_mask_fill(signed, non_finite, f32::NAN.into()),
        Fp8Format::E5M2 => B::float_mask_where(signed, non_finite, input),
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
    let device = B::float_device(&magnitude);
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
