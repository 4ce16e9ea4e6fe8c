//! The operations, with the backward steps that give the state its new values.

use burn::backend::Autodiff;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::Ops;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, TensorMetadata};
use burn_fp8_core::Fp8Format;

use super::check_row::with_check_row;
use super::dot::{self, Source};
use super::options::{DotOptions, QdqOptions};
use super::{flax, forward};
use crate::engine::tensor::reshape;
use crate::engine::{Fp8Engine, Graph, Step, values};
use crate::host::primitive;

/// Takes the gradient of a result and registers those of the operands, then the new values of the state, the operands from number `first` on. What other uses have
/// registered of it is kept where it is larger.
fn run<B: Backend, S: Step<B, N>, const N: usize>(
    ops: Ops<S, N>,
    grads: &mut Gradients,
    first: usize,
) {
    let grad = grads.consume::<B>(&ops.node);
    let wanted = ops.parents.each_ref().map(Option::is_some);
    let gradients = ops.state.clone().backward(grad, wanted);
    for (index, (node, value)) in ops.parents.iter().zip(gradients).enumerate() {
        let (Some(node), Some(value)) = (node, value) else { continue };
        let mut registered = || {
            // A throw-away tensor with the node of the leaf: the only way to the gradient that is registered so far.
            let mut leaf = <FloatTensor<Autodiff<B>>>::new(value.clone());
            leaf.node = node.clone();
            grads.remove::<B>(&leaf)
        };
        let so_far = if index < first { None } else { registered() };
        let value = match so_far {
            Some(other) => maximum::<B>(value, other),
            None => value,
        };
        grads.register::<B>(node.id, value);
    }
}

fn maximum<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let shape = a.shape();
    let largest = flax::maximum(flax::vector::<B>(a), flax::vector::<B>(b));
    reshape::<B>(primitive(largest), shape)
}

/// The gradient passes through.
#[derive(Clone, Debug)]
struct StraightThrough;

impl<B: Backend> Step<B, 1> for StraightThrough {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(grad)]
    }
}

/// [`ops::quantize_dequantize`](crate::ops::quantize_dequantize).
pub(super) fn quantize_dequantize<B: Graph>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    format: Fp8Format,
    compute_dtype: FloatDType,
) -> FloatTensor<B> {
    B::record([&x], || {
        let [x, scale] = values::<B, 2>([&x, &scale]);
        let y = forward::quantize_dequantize::<B::Inner>(x, scale, format, compute_dtype);
        (y, StraightThrough)
    })
}

/// The new scale and history, of the shapes of the leaves. Operands: `x`, scale, history.
#[derive(Clone, Debug)]
struct InQdq<B: Backend>([FloatTensor<B>; 2]);

impl<B: Fp8Engine> Step<B, 3> for InQdq<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let [scale, history] = self.0;
        [grad, scale, history].map(Some)
    }

    fn run(ops: Ops<Self, 3>, grads: &mut Gradients) {
        run::<B, _, 3>(ops, grads, 1);
    }
}

/// [`ops::in_qdq`](crate::ops::in_qdq); `state` is the scale and the amax history.
pub(super) fn in_qdq<B: Graph>(
    x: FloatTensor<B>,
    state: [FloatTensor<B>; 2],
    options: QdqOptions,
) -> FloatTensor<B> {
    state.iter().for_each(B::require_leaf);
    let [scale, history] = state.each_ref();
    B::record([&x, scale, history], || {
        let shapes = [scale.shape(), history.shape()];
        let state = values::<B, 2>([scale, history]);
        let (y, state) = forward::in_qdq::<B::Inner>(B::value(x.clone()), state, options);
        (y, InQdq::<B::Inner>(shaped::<B::Inner>(state, shapes)))
    })
}

/// The scale and history as they were: the gradient is quantized, the state receives its new values. Operands: `x`, scale, history.
#[derive(Clone, Debug)]
struct OutQdq<B: Backend>([FloatTensor<B>; 2], QdqOptions);

impl<B: Fp8Engine> Step<B, 3> for OutQdq<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let Self(state, options) = self;
        let shapes = [state[0].shape(), state[1].shape()];
        let (grad, state) = forward::in_qdq::<B>(grad, state, options);
        let [scale, history] = shaped::<B>(state, shapes);
        [grad, scale, history].map(Some)
    }

    fn run(ops: Ops<Self, 3>, grads: &mut Gradients) {
        run::<B, _, 3>(ops, grads, 1);
    }
}

/// [`ops::out_qdq`](crate::ops::out_qdq); `state` is the scale and the amax history.
pub(super) fn out_qdq<B: Graph>(
    x: FloatTensor<B>,
    state: [FloatTensor<B>; 2],
    options: QdqOptions,
) -> FloatTensor<B> {
    state.iter().for_each(B::require_leaf);
    let [scale, history] = state.each_ref();
    B::record([&x, scale, history], || {
        let state = values::<B, 2>([scale, history]);
        (B::value(x.clone()), OutQdq::<B::Inner>(state, options))
    })
}

/// What the product of a layer keeps. Operands: `x`, kernel, then scale and history of input, kernel and output gradient.
///
/// Holds codes, not nodes of the graph: a gradient checkpoint never quantizes again, so the state advances once.
#[derive(Clone, Debug)]
struct Dot<B: Fp8Engine> {
    product: dot::Saved<B>,
    /// The new state of the operands.
    states: [[FloatTensor<B>; 2]; 2],
    /// The state of the output gradient as it was.
    output_grad: [FloatTensor<B>; 2],
}

impl<B: Fp8Engine> Step<B, 8> for Dot<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; 8]) -> [Option<FloatTensor<B>>; 8] {
        let Self { product, states: [input, kernel], output_grad } = self;
        let dot::Backward { operands, state } = dot::backward::<B>(grad, product, output_grad);
        let states = [input, kernel, state].into_iter().flatten();
        let states = states.map(|value| Some(with_check_row::<B>(value)));
        let mut all = operands.into_iter().chain(states);
        [(); 8].map(|()| all.next().flatten())
    }

    fn run(ops: Ops<Self, 8>, grads: &mut Gradients) {
        run::<B, _, 8>(ops, grads, 2);
    }
}

/// The product of [`nn::Fp8DotGeneral`](crate::nn::Fp8DotGeneral): `x` `[…, K]` times `kernel` `[K, N]`, neither empty, both of one
/// type; `states` are scale and amax history of input, kernel and output gradient.
pub(crate) fn dot<B: Graph>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    states: [[FloatTensor<B>; 2]; 3],
    options: DotOptions,
) -> FloatTensor<B> {
    states.iter().flatten().for_each(B::require_leaf);
    let is_tracked = states.iter().flatten().chain([&x, &kernel]).any(B::is_tracked);
    let sources =
        states.each_ref().map(|[_, history]| match (B::is_tracked(history), is_tracked) {
            (true, _) => Source::Moving,
            (false, true) => Source::Operand,
            (false, false) => Source::Still,
        });
    // An operand is needed only for the gradient of the other one.
    let save = [B::is_tracked(&kernel), B::is_tracked(&x)];
    let operands: Vec<_> = [&x, &kernel].into_iter().chain(states.iter().flatten()).collect();
    let operands: [_; 8] =
        operands.try_into().expect("two operands and three states of two leaves");
    B::record(operands, || {
        let [x, kernel] = values::<B, 2>([&x, &kernel]);
        let [input, weight, output_grad] =
            states.each_ref().map(|state| values::<B, 2>(state.each_ref()));
        let dot::Forward { output, saved: product, states } =
            dot::forward::<B::Inner>(x, kernel, [input, weight], sources, options, save);
        (output, Dot { product, states, output_grad })
    })
}

fn shaped<B: Fp8Engine>(
    [scale, history]: [FloatTensor<B>; 2],
    [scale_shape, history_shape]: [Shape; 2],
) -> [FloatTensor<B>; 2] {
    [reshape::<B>(scale, scale_shape), reshape::<B>(history, history_shape)]
}
