//! Operations on single elements in f32, whatever the type of their tensors, and what their backward step needs.

use burn_backend::{TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Pointwise;

use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, in_f32};

/// What the backward step takes.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    operation: Pointwise,
    /// The input, where the gradient depends on it.
    x: Option<FloatTensor<B>>,
}

/// The results, of the type of `x`.
pub(super) fn forward<B: Fp8Engine>(
    operation: Pointwise,
    x: FloatTensor<B>,
) -> (FloatTensor<B>, Saved<B>) {
    let dtype = x.dtype();
    let saved = Saved { operation, x: operation.keeps_input().then(|| x.clone()) };
    let output = B::fp8_pointwise(operation, in_f32::<B>(x));
    (cast::<B>(output, dtype.into()), saved)
}

/// The gradient, of the type of that of the results.
pub(super) fn backward<B: Fp8Engine>(
    grad: FloatTensor<B>,
    Saved { operation, x }: Saved<B>,
) -> FloatTensor<B> {
    let dtype = grad.dtype();
    let x = x.map(in_f32::<B>);
    cast::<B>(B::fp8_pointwise_backward(operation, x, in_f32::<B>(grad)), dtype.into())
}
