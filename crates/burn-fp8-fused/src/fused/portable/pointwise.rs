//! Operations on single elements, in tensor operations.

use burn_backend::{Backend, FloatDType, TensorData, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Dropout, MlpActivation, Pointwise};
use burn_fp8_cpu::dropout::keep_group;

use crate::host;

/// The results.
pub(crate) fn forward<B: Backend>(operation: Pointwise, x: FloatTensor<B>) -> FloatTensor<B> {
    match operation {
        Pointwise::Gelu => B::float_mul(x.clone(), cumulative::<B>(x)),
        Pointwise::Silu => B::float_mul(x.clone(), logistic::<B>(x)),
        Pointwise::Dropout(dropout) => drop_out::<B>(dropout, x),
    }
}

/// The gradient of `x`, which dropout does not need.
pub(crate) fn backward<B: Backend>(
    operation: Pointwise,
    x: Option<FloatTensor<B>>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    match (operation, x) {
        (Pointwise::Gelu, Some(x)) => {
            let squares = B::float_mul(x.clone(), x.clone());
            let density = B::float_exp(B::float_mul_scalar(squares, (-0.5f32).into()));
            let root = (2.0 * core::f32::consts::PI).sqrt();
            let slope = B::float_div_scalar(B::float_mul(x.clone(), density), root.into());
            B::float_mul(grad, B::float_add(cumulative::<B>(x), slope))
        }
        (Pointwise::Silu, Some(x)) => {
            let logistic = logistic::<B>(x.clone());
            let rest = B::float_add_scalar(B::float_neg(logistic.clone()), 1f32.into());
            let slope = B::float_add_scalar(B::float_mul(x, rest), 1f32.into());
            B::float_mul(grad, B::float_mul(logistic, slope))
        }
        (Pointwise::Dropout(dropout), _) => drop_out::<B>(dropout, grad),
        (Pointwise::Gelu | Pointwise::Silu, None) => unreachable!("its step keeps its input"),
    }
}

/// An activation of the first times the second.
pub(crate) fn gated<B: Backend>(
    activation: MlpActivation,
    [gate, up]: [FloatTensor<B>; 2],
) -> FloatTensor<B> {
    B::float_mul(forward::<B>(activation.into(), gate), up)
}

/// The gradients of both, given them and that of the results.
pub(crate) fn gated_backward<B: Backend>(
    activation: MlpActivation,
    [gate, up, grad]: [FloatTensor<B>; 3],
) -> [FloatTensor<B>; 2] {
    let of_up = B::float_mul(grad.clone(), forward::<B>(activation.into(), gate.clone()));
    [backward::<B>(activation.into(), Some(gate), B::float_mul(grad, up)), of_up]
}

/// The cumulative normal distribution.
fn cumulative<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let erf = B::float_erf(B::float_mul_scalar(x, core::f32::consts::FRAC_1_SQRT_2.into()));
    B::float_mul_scalar(B::float_add_scalar(erf, 1f32.into()), 0.5f32.into())
}

/// `1 / (1 + e⁻ˣ)`. By a division: NdArray's `float_recip` is an approximation, with an error of some 5e-6.
fn logistic<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let ones = B::float_ones(x.shape(), &host::float_device::<B>(&x), FloatDType::F32);
    B::float_div(ones, B::float_add_scalar(B::float_exp(B::float_neg(x)), 1f32.into()))
}

fn drop_out<B: Backend>(dropout: Dropout, x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let count = shape.num_elements();
    let factor = dropout.factor();
    let mut factors = Vec::with_capacity(count.next_multiple_of(Dropout::GROUP));
    let mut kept = [[0.0; Dropout::ROWS]; Dropout::GROUP / Dropout::ROWS];
    for group in 0..count.div_ceil(Dropout::GROUP) {
        keep_group(dropout, group as u64, &mut kept);
        factors.extend(kept.as_flattened().iter().map(|kept| kept * factor));
    }
    factors.truncate(count);
    let factors = TensorData::new(factors, shape);
    let factors = B::float_from_data(factors, &host::float_device::<B>(&x));
    B::float_mul(x, factors)
}
