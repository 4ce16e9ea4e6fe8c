//! The arithmetic of `fp8_ops`, on tensors that no gradient passes through.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, DType, FloatDType, Shape, Tensor, TensorMetadata, TensorPrimitive};
use burn_fp8_core::{AmaxChoice, Fp8Format, Overflow, scale};

use super::options::QdqOptions;
use crate::engine::tensor::reshape;
use crate::engine::{
    Fp8Engine, Matrix, MatrixOf, Request, Scalar, ScaleRule, ScaleRuleOf, Scales, Wanted,
};
use crate::host::primitive;

/// Divides a non-empty tensor by a scale of one element, clips and rounds.
pub(crate) fn quantize<B: Fp8Engine>(
    x: &FloatTensor<B>,
    scale: FloatTensor<B>,
    format: Fp8Format,
    compute_dtype: FloatDType,
    wanted: Wanted,
) -> MatrixOf<B> {
    let scale = reshape::<B>(scale, Shape::new([1]));
    let (x, rule) = divided::<B>(x, scale.clone(), compute_dtype);
    let matrix = B::fp8_quantize(x, Request::whole(format, rule, wanted));
    Matrix { scales: Scales::One(Scalar::Device(scale)), ..matrix }
}

/// The tensor that is clipped and rounded, and the scale by which it is still to be divided before.
fn divided<B: Fp8Engine>(
    x: &FloatTensor<B>,
    scale: FloatTensor<B>,
    compute_dtype: FloatDType,
) -> (FloatTensor<B>, ScaleRuleOf<B>) {
    let divisor = rounded::<B>(scale, compute_dtype);
    match promote(x.dtype(), compute_dtype) {
        FloatDType::F32 => {
            (x.clone(), ScaleRule::Given(Scalar::Device(divisor), Overflow::Saturate))
        }
        half => {
            // An f32 quotient of two half-precision numbers has enough bits that rounding it again is harmless.
            let divisor = reshape::<B>(divisor, Shape::from(vec![1; x.rank()]));
            let quotient = B::float_div(B::float_cast(x.clone(), FloatDType::F32), divisor);
            let rule = ScaleRule::Given(Scalar::Host(1.0), Overflow::Saturate);
            (B::float_cast(quotient, half), rule)
        }
    }
}

/// The type that a tensor is divided in: bf16 and f16 only where both are.
fn promote(x: DType, compute: FloatDType) -> FloatDType {
    match (x, compute) {
        (DType::BF16, FloatDType::BF16) => FloatDType::BF16,
        (DType::F16, FloatDType::F16) => FloatDType::F16,
        _ => FloatDType::F32,
    }
}

/// An f32 tensor, its numbers rounded to `dtype`.
fn rounded<B: Backend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    match dtype {
        FloatDType::BF16 | FloatDType::F16 => {
            B::float_cast(B::float_cast(tensor, dtype), FloatDType::F32)
        }
        _ => tensor,
    }
}

/// The values of codes, f32, times a scale of one element. The product of a value and a rounded scale is rounded once, to `dtype`.
pub(crate) fn dequantize<B: Backend>(
    values: FloatTensor<B>,
    scale: FloatTensor<B>,
    dtype: DType,
) -> FloatTensor<B> {
    let scale = rounded::<B>(scale, dtype.into());
    let scale = reshape::<B>(scale, Shape::from(vec![1; values.rank()]));
    cast::<B>(B::float_mul(values, scale), dtype)
}

pub(crate) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => B::float_cast(tensor, dtype.into()),
    }
}

/// [`ops::compute_scale`](super::compute_scale).
pub(crate) fn compute_scale<B: Backend, const D: usize>(
    amax: Tensor<B, D>,
    scale: Tensor<B, D>,
    format: Fp8Format,
    margin: i32,
) -> Tensor<B, D> {
    // Divided by tensors: some backends turn a division by a constant into a product with its reciprocal.
    let one = amax.ones_like();
    let max = amax.full_like(format.max());
    let power = amax.full_like(2f32.powi(margin));
    let kept = one.clone() / scale;
    let inverse = max / amax.clone() / power;
    // Both comparisons are false for NaN.
    let usable = amax.clone().greater_elem(0.0).bool_and(amax.lower_equal_elem(f32::MAX));
    one / kept.mask_where(usable, inverse)
}

/// A history after a step with this amax.
pub(crate) fn push<B: Backend>(amax: FloatTensor<B>, history: Tensor<B, 1>) -> Tensor<B, 1> {
    let amax = vector::<B>(amax);
    match history.dims() {
        [0] => panic!("an amax history has at least one entry; this one has none"),
        [1] => amax,
        [2] => Tensor::cat(vec![amax, history.slice(0..1)], 0),
        [steps] => {
            let (oldest, rest) = (history.clone().slice(0..1), history.slice(2..steps));
            Tensor::cat(vec![amax, rest, oldest], 0)
        }
    }
}

/// The scale `[1]` for `x`, chosen from the history as it was, and the history `[H]` with `x` in it.
pub(crate) fn update<B: Fp8Engine>(
    x: &FloatTensor<B>,
    [scale, history]: [FloatTensor<B>; 2],
    options: QdqOptions,
) -> [FloatTensor<B>; 2] {
    let history = vector::<B>(history);
    let scale = next_scale::<B>(scale, &history, options);
    [scale, push(B::fp8_amax(x.clone()), history)].map(primitive)
}

/// The scale `[1]` chosen from a history, given the one before.
pub(crate) fn next_scale<B: Fp8Engine>(
    scale: FloatTensor<B>,
    history: &Tensor<B, 1>,
    options: QdqOptions,
) -> Tensor<B, 1> {
    let amax = match options.amax_choice {
        AmaxChoice::Maximum => vector::<B>(B::fp8_amax(primitive(history.clone()))),
        AmaxChoice::MostRecent => history.clone().slice(0..1),
    };
    compute_scale(amax, vector::<B>(scale), options.format, options.margin)
}

/// The scale `[1]` that the amax of `x` itself gives, at least 2^-126: the smallest amaxes would give 0, by which no zero can be divided. An amax that is 0 or not
/// finite keeps the scale given.
pub(crate) fn current_scale<B: Fp8Engine>(
    x: &FloatTensor<B>,
    scale: Tensor<B, 1>,
    options: QdqOptions,
) -> Tensor<B, 1> {
    let amax = vector::<B>(B::fp8_amax(x.clone()));
    compute_scale(amax, scale, options.format, options.margin).clamp_min(scale::MIN_SCALE)
}

/// Whether a state is what every state is at first: `[1]`.
pub(crate) fn has_seen_nothing<B: Fp8Engine>(
    scale: &Tensor<B, 1>,
    history: &Tensor<B, 1>,
) -> Tensor<B, 1, Bool> {
    let largest = vector::<B>(B::fp8_amax(primitive(history.clone())));
    largest.equal_elem(0.0).bool_and(scale.clone().equal_elem(1.0))
}

/// The elementwise maximum; NaN where either is NaN.
pub(crate) fn maximum<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
) -> Tensor<B, D> {
    // The comparison with infinity is false for NaN only.
    let nan = b.clone().lower_equal_elem(f32::INFINITY).bool_not();
    let larger = a.clone().lower(b.clone());
    a.mask_where(nan.bool_or(larger), b)
}

/// A tensor of any shape as a vector.
pub(crate) fn vector<B: Backend>(tensor: FloatTensor<B>) -> Tensor<B, 1> {
    let elements = tensor.shape().num_elements();
    let tensor = reshape::<B>(tensor, Shape::new([elements]));
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
