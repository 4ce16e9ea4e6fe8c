//! Operations on single elements in f32, whatever the type of their tensors, and what their backward step needs.

use burn_backend::{TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{MlpActivation, Pointwise};

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

/// What the backward step of a gated activation takes: its operands, and no results.
#[derive(Clone, Debug)]
pub(super) struct SavedGates<B: Fp8Engine> {
    activation: MlpActivation,
    operands: [Kept<B>; 2],
}

/// `act(gate) · up`, of their type.
///
/// # Panics
/// Where shapes or types differ.
#[track_caller]
pub(super) fn gated<B: Fp8Engine>(
    activation: MlpActivation,
    operands: [FloatTensor<B>; 2],
    as_asked: burn_fp8_core::Saved,
) -> (FloatTensor<B>, SavedGates<B>) {
    let dtype = operands[0].dtype();
    let shapes = operands.each_ref().map(|x| (x.shape(), x.dtype()));
    assert!(shapes[0] == shapes[1], "a gate and what it is for must be alike, not {shapes:?}");
    let kept = operands.clone().map(|x| Kept::new(x, as_asked));
    let saved = SavedGates { activation, operands: kept };
    let output = gated_results::<B>(activation, operands.map(in_f32::<B>));
    (cast::<B>(output, dtype.into()), saved)
}

impl<B: Fp8Engine> Step<B, 2> for SavedGates<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let dtype = grad.dtype();
        let [gate, up] = self.operands.map(Kept::restore);
        let given = [gate, up, grad].map(in_f32::<B>);
        let gradients = gated_gradients::<B>(self.activation, given);
        gradients.map(|of| Some(cast::<B>(of, dtype.into())))
    }
}

fn gated_results<B: Fp8Engine>(
    activation: MlpActivation,
    operands: [FloatTensor<B>; 2],
) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let operands = match flex::run(operands, |operands| flex::gated(activation, operands)) {
        Ok(output) => return output,
        Err(operands) => operands,
    };
    portable::pointwise::gated::<B>(activation, operands)
}

fn gated_gradients<B: Fp8Engine>(
    activation: MlpActivation,
    given: [FloatTensor<B>; 3],
) -> [FloatTensor<B>; 2] {
    #[cfg(feature = "flex")]
    let given = match flex::run(given, |given| flex::gated_backward(activation, given)) {
        Ok(gradients) => return gradients,
        Err(given) => given,
    };
    portable::pointwise::gated_backward::<B>(activation, given)
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
