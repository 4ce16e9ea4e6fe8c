//! The two verbs in tensor operations, for backends that have nothing faster.
//!
//! Codes are bit-equal to [`burn_fp8_cpu::slice`], but for sign and payload of NaN, where division and the comparisons used here are IEEE's.

pub mod codes;
pub mod epilogue;
pub mod grid;
mod round;
pub mod scale;

use burn_backend::{
    Backend, DType, FloatDType, Shape, Slice, TensorMetadata, tensor::FloatTensor,
    tensor::IntTensor,
};
use burn_fp8_core::{Fp8Format, Overflow};

use crate::engine::codes::Codes;
use crate::engine::matrix::{Matrix, MatrixOf, Scales};
use crate::engine::product::{Operand, OperandOf};
use crate::engine::request::{Request, RequestOf, ScaleRule, ScaleRuleOf};
use crate::engine::scalar::Scalar;
use crate::engine::tensor::join;
use crate::host;
use round::round;

/// Elements of a matrix that are converted at a time.
const PIECE: usize = 1 << 20;

/// A product in the type of `lhs`; a matrix `rhs` of another type is converted in pieces, some columns at a time.
pub(super) fn matmul_mixed<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let (dtype, shape) = (lhs.dtype(), rhs.shape());
    if rhs.dtype() == dtype {
        return B::float_matmul(lhs, rhs);
    }
    let [k, n] = shape.dims();
    let columns = (PIECE / k).clamp(1, n);
    let pieces = (0..n).step_by(columns).map(|first| {
        let slices = [Slice::from(0..k), Slice::from(first..n.min(first + columns))];
        let piece = B::float_slice(rhs.clone(), &slices);
        B::float_matmul(lhs.clone(), B::float_cast(piece, dtype.into()))
    });
    B::float_cat(pieces.collect(), 1)
}

pub(super) fn with_one_scale<B: Backend>(
    tensor: FloatTensor<B>,
    request: RequestOf<B>,
) -> MatrixOf<B> {
    let Request { format, rule, .. } = request;
    let (scale, amax, overflow) = choose_scale::<B>(&tensor, format, rule);
    let divisor = B::float_reshape(
        scale.on_device::<B>(&host::float_device::<B>(&tensor)),
        Shape::from(vec![1; tensor.rank()]),
    );
    let quotient = B::float_div(tensor.clone(), divisor);
    let input = match overflow {
        Overflow::SaturateFinite => tensor,
        Overflow::Saturate | Overflow::NonSaturating => quotient.clone(),
    };
    let values = round::<B>(quotient, input, format, overflow);
    let amax = amax.map(Scalar::Device);
    Matrix { amax, ..Matrix::new(Codes::Values(values), Scales::One(scale), format) }
}

pub fn in_f32<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::F32 => tensor,
        _ => B::float_cast(tensor, FloatDType::F32),
    }
}

/// The scale of an f32 tensor, its amax where that was measured, and the treatment of overflow.
fn choose_scale<B: Backend>(
    tensor: &FloatTensor<B>,
    format: Fp8Format,
    rule: ScaleRuleOf<B>,
) -> (Scalar<FloatTensor<B>>, Option<FloatTensor<B>>, Overflow) {
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

/// How many finite elements of a tensor, divided by the scales of what it was quantized to, are beyond the largest number of the format. Shape
/// `[1]`.
pub fn count_saturated<B: Backend>(tensor: &FloatTensor<B>, matrix: &MatrixOf<B>) -> IntTensor<B> {
    let divisor = matrix.spread_scales::<B>();
    let tensor = in_f32::<B>(tensor.clone());
    let tensor = match (&matrix.scales, divisor.rank() == tensor.rank()) {
        // A tensor becomes a matrix where tensor cores take it.
        (_, false) => join::<B>(tensor),
        _ => tensor,
    };
    let settings = burn_backend::get_device_settings::<B>(&host::float_device::<B>(&tensor));
    let magnitude = scale::magnitude::<B>(tensor);
    let finite = B::float_lower_equal_elem(magnitude.clone(), f32::MAX.into(), settings.bool_dtype);
    let quotient = B::float_div(magnitude, divisor);
    let bound = matrix.format.saturates_beyond().into();
    let beyond = B::float_greater_elem(quotient, bound, settings.bool_dtype);
    let saturated = B::bool_and(beyond, finite);
    B::int_sum(B::bool_into_int(saturated, settings.int_dtype))
}

/// The numbers that the codes stand for, without scales.
pub(super) fn values<B: Backend>(matrix: &MatrixOf<B>) -> FloatTensor<B> {
    match (&matrix.values, &matrix.codes, &matrix.transposed) {
        (Some(values), ..) => values.clone(),
        (None, Some(codes), _) => codes::values::<B>(codes.clone(), matrix.format),
        (None, None, Some(codes)) => {
            B::float_transpose(codes::values::<B>(codes.clone(), matrix.format))
        }
        (None, None, None) => unreachable!("a matrix has its codes in some form"),
    }
}

/// Whether the scales of an operand can wait until its elements along a dimension are summed.
pub fn is_constant<B: Backend>(operand: &OperandOf<B>, dim: usize) -> bool {
    match operand {
        Operand::Matrix(matrix) => matrix.is_constant_along(dim),
        Operand::Float(_) => true,
    }
}

pub fn rescale<B: Backend>(
    product: FloatTensor<B>,
    scales: [Scales<FloatTensor<B>>; 2],
) -> FloatTensor<B> {
    let device = host::float_device::<B>(&product);
    let [lhs, rhs] = scales.map(|scales| match scales {
        Scales::One(scale) => {
            let scale = scale.on_device::<B>(&device);
            B::float_reshape(scale, Shape::from(vec![1; product.rank()]))
        }
        Scales::Grid { scales, .. } => scales,
    });
    scale::of_product::<B>(lhs, rhs).into_iter().fold(product, B::float_mul)
}
