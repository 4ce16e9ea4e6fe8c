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
    activation: Pointwise,
    gate: Kept<B>,
    up: Kept<B>,
}

/// `act(gate) · up`, of their type.
///
/// # Panics
/// Where shapes or types differ.
#[track_caller]
pub(super) fn gated<B: Fp8Engine>(
    activation: MlpActivation,
    [gate, up]: [FloatTensor<B>; 2],
    as_asked: burn_fp8_core::Saved,
) -> (FloatTensor<B>, SavedGates<B>) {
    let dtype = gate.dtype();
    let shapes = [&gate, &up].map(|x| (x.shape(), x.dtype()));
    assert!(shapes[0] == shapes[1], "a gate and what it is for must be alike, not {shapes:?}");
    let activation = match activation {
        MlpActivation::Gelu => Pointwise::Gelu,
        MlpActivation::Silu => Pointwise::Silu,
    };
    let keep = |x: &FloatTensor<B>| Kept::new(x.clone(), as_asked);
    let saved = SavedGates { activation, gate: keep(&gate), up: keep(&up) };
    let [gate, up] = [gate, up].map(in_f32::<B>);
    let output = B::float_mul(results::<B>(activation, gate), up);
    (cast::<B>(output, dtype.into()), saved)
}

impl<B: Fp8Engine> Step<B, 2> for SavedGates<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (dtype, activation) = (grad.dtype(), self.activation);
        let [gate, up, grad] = [self.gate.restore(), self.up.restore(), grad].map(in_f32::<B>);
        let of_up = B::float_mul(grad.clone(), results::<B>(activation, gate.clone()));
        let of_gate = gradient::<B>(activation, Some(gate), B::float_mul(grad, up));
        [of_gate, of_up].map(|of| Some(cast::<B>(of, dtype.into())))
    }
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
