//! The gradient of softmax, in tensor operations.

use burn_backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Softmax;

/// The gradient of the input, given the results and theirs.
pub(crate) fn backward<B: Backend>(
    kind: Softmax,
    y: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let last = y.rank() - 1;
    match kind {
        Softmax::Probabilities => {
            let along = B::float_sum_dim(B::float_mul(y.clone(), grad.clone()), last);
            B::float_mul(y, B::float_sub(grad, along))
        }
        Softmax::Logarithms => {
            let total = B::float_sum_dim(grad.clone(), last);
            B::float_sub(grad, B::float_mul(B::float_exp(y), total))
        }
    }
}
