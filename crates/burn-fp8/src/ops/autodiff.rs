//! The operations on `Autodiff<B>`: forward on `B`, and a backward step each.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, TensorMetadata};
use burn_fp8_core::Fp8Format;

use super::check_row::with_check_row;
use super::dot::{self, Source};
use super::forward;
use super::layer_ops::Fp8LayerOps;
use super::options::{DotOptions, QdqOptions};
use super::state::{register, require_leaf};
use crate::engine::Fp8Engine;
use crate::engine::tensor::reshape;

type AutodiffTensor<B, C> = FloatTensor<Autodiff<B, C>>;

impl<B: Fp8Engine, C: CheckpointStrategy> Fp8LayerOps for Autodiff<B, C> {
    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        quantize_dequantize::<B, C>(x, scale, format, compute_dtype)
    }

    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        in_qdq::<B, C>(x, state, options)
    }

    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        out_qdq::<B, C>(x, state, options)
    }

    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        dot::<B, C>(x, kernel, states, options)
    }
}

/// The cotangent passes through.
#[derive(Debug)]
struct StraightThrough;

impl<B: Fp8Engine> Backward<B, 1> for StraightThrough {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        if let [Some(x)] = ops.parents {
            grads.register::<B>(x.id, grad);
        }
    }
}

fn quantize_dequantize<B: Fp8Engine, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    scale: AutodiffTensor<B, C>,
    format: Fp8Format,
    compute_dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    let output =
        forward::quantize_dequantize::<B>(x.primitive, scale.primitive, format, compute_dtype);
    Backward::<B, 1>::prepare::<C>(StraightThrough, [x.node]).compute_bound().stateless(output)
}

/// The cotangent passes through, the state receives its new values. Parents: `x`, scale, history.
#[derive(Debug)]
struct InQdq;

impl<B: Fp8Engine> Backward<B, 3> for InQdq {
    /// The new scale and history, of the shapes of the leaves.
    type State = [FloatTensor<B>; 2];

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        register::<B, _, 3>(grads, &ops, 1, ops.state.clone());
        if let [Some(x), ..] = ops.parents {
            grads.register::<B>(x.id, grad);
        }
    }
}

fn in_qdq<B: Fp8Engine, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    [scale, history]: [AutodiffTensor<B, C>; 2],
    options: QdqOptions,
) -> AutodiffTensor<B, C> {
    require_leaf::<B, C>(&scale);
    require_leaf::<B, C>(&history);
    let shapes = [scale.shape(), history.shape()];
    let nodes = [x.node, scale.node, history.node];
    let state = [scale.primitive, history.primitive];
    let (output, state) = forward::in_qdq::<B>(x.primitive, state, options);
    match Backward::<B, 3>::prepare::<C>(InQdq, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(shaped::<B>(state, shapes), output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// The cotangent is quantized, the state receives its new values. Parents: `x`, scale, history.
#[derive(Debug)]
struct OutQdq;

impl<B: Fp8Engine> Backward<B, 3> for OutQdq {
    /// The scale and history as they were.
    type State = ([FloatTensor<B>; 2], QdqOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let (state, options) = ops.state.clone();
        let shapes = [state[0].shape(), state[1].shape()];
        let (grad, state) = forward::in_qdq::<B>(grad, state, options);
        register::<B, _, 3>(grads, &ops, 1, shaped::<B>(state, shapes));
        if let [Some(x), ..] = ops.parents {
            grads.register::<B>(x.id, grad);
        }
    }
}

fn out_qdq<B: Fp8Engine, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    [scale, history]: [AutodiffTensor<B, C>; 2],
    options: QdqOptions,
) -> AutodiffTensor<B, C> {
    require_leaf::<B, C>(&scale);
    require_leaf::<B, C>(&history);
    let nodes = [x.node, scale.node, history.node];
    let state = [scale.primitive, history.primitive];
    match Backward::<B, 3>::prepare::<C>(OutQdq, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish((state, options), x.primitive),
        OpsKind::UnTracked(prep) => prep.finish(x.primitive),
    }
}

/// The product of a layer. Parents: `x`, kernel, then scale and history of input, kernel and output gradient.
///
/// Holds codes, not nodes of the graph: a gradient checkpoint never quantizes again, so the state advances once.
#[derive(Debug)]
struct Dot;

#[derive(Clone, Debug)]
struct SavedDot<B: Fp8Engine> {
    product: dot::Saved<B>,
    /// The new state of the operands.
    states: [[FloatTensor<B>; 2]; 2],
    /// The state of the output gradient as it was.
    output_grad: [FloatTensor<B>; 2],
}

impl<B: Fp8Engine> Backward<B, 8> for Dot {
    type State = SavedDot<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 8>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let SavedDot { product, states, output_grad } = ops.state.clone();
        let grad = grads.consume::<B>(&ops.node);
        let dot::Backward { operands, state } = dot::backward::<B>(grad, product, output_grad);
        let [input, kernel] = states;
        for (first, state) in [2, 4, 6].into_iter().zip([input, kernel, state]) {
            register::<B, _, 8>(grads, &ops, first, state.map(with_check_row::<B>));
        }
        for (node, grad) in ops.parents.iter().zip(operands) {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

fn dot<B: Fp8Engine, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    kernel: AutodiffTensor<B, C>,
    states: [[AutodiffTensor<B, C>; 2]; 3],
    options: DotOptions,
) -> AutodiffTensor<B, C> {
    states.iter().flatten().for_each(require_leaf::<B, C>);
    let is_tracked = states.iter().flatten().chain([&x, &kernel]).any(|tensor| tensor.is_tracked());
    let sources = states.each_ref().map(|[_, history]| match (history.is_tracked(), is_tracked) {
        (true, _) => Source::Moving,
        (false, true) => Source::Operand,
        (false, false) => Source::Still,
    });
    // An operand is needed only for the gradient of the other one.
    let save = [kernel.is_tracked(), x.is_tracked()];
    let leaves = states.iter().flatten().map(|leaf| leaf.node.clone());
    let nodes: Vec<_> = [x.node, kernel.node].into_iter().chain(leaves).collect();
    let nodes: [_; 8] = nodes.try_into().expect("two operands and three states of two leaves");
    let [input, weight, output_grad] = states.map(|state| state.map(|leaf| leaf.primitive));

    let dot::Forward { output, saved: product, states } =
        dot::forward::<B>(x.primitive, kernel.primitive, [input, weight], sources, options, save);
    match Backward::<B, 8>::prepare::<C>(Dot, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(SavedDot { product, states, output_grad }, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

fn shaped<B: Fp8Engine>(
    [scale, history]: [FloatTensor<B>; 2],
    [scale_shape, history_shape]: [Shape; 2],
) -> [FloatTensor<B>; 2] {
    [reshape::<B>(scale, scale_shape), reshape::<B>(history, history_shape)]
}
