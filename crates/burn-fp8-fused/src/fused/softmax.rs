//! Softmax of rows and its logarithm in f32, whatever the type of the tensor. The backward step takes the results alone.

use burn_backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Softmax;

#[cfg(feature = "flex")]
use super::flex;
use super::kept::Kept;
use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, Step, in_f32};

#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    kind: Softmax,
    y: Kept<B>,
}

/// The results, of the type of `x`.
pub(super) fn forward<B: Fp8Engine>(
    kind: Softmax,
    x: FloatTensor<B>,
    as_asked: burn_fp8_core::Saved,
) -> (FloatTensor<B>, Saved<B>) {
    let dtype = x.dtype();
    let y = cast::<B>(results::<B>(kind, in_f32::<B>(x)), dtype.into());
    // An error of a logarithm is one of its exponential.
    let as_asked = match kind {
        Softmax::Probabilities => as_asked,
        Softmax::Logarithms => burn_fp8_core::Saved::Whole,
    };
    (y.clone(), Saved { kind, y: Kept::new(y, as_asked) })
}

impl<B: Fp8Engine> Step<B, 1> for Saved<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        let Self { kind, y } = self;
        let dtype = grad.dtype();
        let [y, grad] = [y.restore(), grad].map(in_f32::<B>);
        [Some(cast::<B>(gradient::<B>(kind, y, grad), dtype.into()))]
    }
}

fn results<B: Fp8Engine>(kind: Softmax, x: FloatTensor<B>) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let x = match flex::run(x, |x| flex::softmax(kind, x)) {
        Ok(output) => return output,
        Err(x) => x,
    };
    let last = x.rank() - 1;
    match kind {
        Softmax::Probabilities => B::softmax(x, last),
        Softmax::Logarithms => B::log_softmax(x, last),
    }
}

fn gradient<B: Fp8Engine>(
    kind: Softmax,
    y: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let (y, grad) = match flex::run((y, grad), |(y, grad)| flex::softmax_backward(kind, y, grad)) {
        Ok(gradient) => return gradient,
        Err(given) => given,
    };
    by_operations::<B>(kind, y, grad)
}

/// The same in tensor operations.
fn by_operations<B: Backend>(
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
