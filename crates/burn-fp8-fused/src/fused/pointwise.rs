//! Operations on single elements in f32, whatever the type of their tensors, and what their backward step needs.

use burn_backend::{TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Pointwise;

#[cfg(feature = "flex")]
use super::flex;
use super::kept::Kept;
use super::portable;
use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, Step, in_f32};

/// What the backward step takes.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    operation: Pointwise,
    /// The input, where the gradient depends on it.
    x: Option<Kept<B>>,
}

/// The results, of the type of `x`.
pub(super) fn forward<B: Fp8Engine>(
    operation: Pointwise,
    x: FloatTensor<B>,
    as_asked: burn_fp8_core::Saved,
) -> (FloatTensor<B>, Saved<B>) {
    let dtype = x.dtype();
    let kept = operation.keeps_input().then(|| Kept::new(x.clone(), as_asked));
    let saved = Saved { operation, x: kept };
    let output = results::<B>(operation, in_f32::<B>(x));
    (cast::<B>(output, dtype.into()), saved)
}

impl<B: Fp8Engine> Step<B, 1> for Saved<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(pointwise_backward::<B>(self.operation, self.x.map(Kept::restore), grad))]
    }
}

/// The gradient of an operation, of the type of that of the results; `x` where it depends on that: [`Pointwise::keeps_input`].
pub fn pointwise_backward<B: Fp8Engine>(
    operation: Pointwise,
    x: Option<FloatTensor<B>>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let dtype = grad.dtype();
    let (x, grad) = (x.map(in_f32::<B>), in_f32::<B>(grad));
    cast::<B>(gradient::<B>(operation, x, grad), dtype.into())
}

fn results<B: Fp8Engine>(operation: Pointwise, x: FloatTensor<B>) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let x = match flex::run(x, |x| flex::pointwise(operation, x)) {
        Ok(output) => return output,
        Err(x) => x,
    };
    portable::pointwise::forward::<B>(operation, x)
}

fn gradient<B: Fp8Engine>(
    operation: Pointwise,
    x: Option<FloatTensor<B>>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let (x, grad) =
        match flex::run((x, grad), |(x, grad)| flex::pointwise_backward(operation, x, grad)) {
            Ok(gradient) => return gradient,
            Err(given) => given,
        };
    portable::pointwise::backward::<B>(operation, x, grad)
}
