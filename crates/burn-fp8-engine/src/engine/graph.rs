//! Operations on a backend with a graph or without: one way to run them, with backward steps of their own where there is one.

use core::fmt::Debug;
use core::marker::PhantomData;

use burn_autodiff::{
    Autodiff, checkpoint::base::Checkpointer, checkpoint::strategy::CheckpointStrategy,
    grads::Gradients, ops::Backward, ops::Ops, ops::OpsKind,
};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, FloatDType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AttentionPrecision, Gemm, GemmRole, Saved};

use super::backend::{Fp8Engine, Untracked};
use super::leaf::Leaf;
use super::matrix::MatrixOf;
use super::product::Target;
use super::target::Manner;
use crate::host;

/// A backend on which FP8 operations run: one of Burn's, `Autodiff` around it, or a decorator around either.
///
/// Burn's backends are, behind the features of their names, and so are `Autodiff` and `Fp8Backend` around them. Another backend opts in with
/// `fp8_backend!`. Nobody implements this by hand.
///
/// An operation takes the values of its operands, runs on [`Inner`](Self::Inner), and records what its backward step needs.
#[diagnostic::on_unimplemented(
    message = "burn-fp8 does not know the backend `{Self}`",
    label = "no backend that burn-fp8 knows",
    note = "a backend of Burn needs the feature of its name in burn-fp8, too: `flex`, `ndarray`, `wgpu`, `cuda`, …; one of your own opts in with `burn_fp8::fp8_backend!`",
    note = "a backend of another version of Burn is another type: `cargo tree -d` lists what the project has twice",
    note = "`burn::Dispatch` hides its tensors: name the backend that it stands for, as in `Fp8Backend<Autodiff<Flex>>`, with that backend's device"
)]
pub trait Graph: Fp8Engine {
    /// Whether there is one.
    const HAS_GRAPH: bool;

    /// What operations run on: the backend that the graph is around, or the backend itself.
    type Inner: Fp8Engine<
            Device = Self::Device,
            IntTensorPrimitive = Self::IntTensorPrimitive,
            BoolTensorPrimitive = Self::BoolTensorPrimitive,
        >;

    /// Whether gradients are tracked for a tensor.
    fn is_tracked(tensor: &FloatTensor<Self>) -> bool;

    /// What a tensor holds, without the graph.
    fn value(tensor: FloatTensor<Self>) -> FloatTensor<Self::Inner>;

    /// A constant of the graph.
    fn constant(value: FloatTensor<Self::Inner>) -> FloatTensor<Self>;

    /// What tells a leaf of the graph from all others, where the tensor is one.
    fn leaf(tensor: &FloatTensor<Self>) -> Option<Leaf>;

    /// What names a tracked leaf for good, as far as that can be told: whatever changes a parameter makes a new one.
    fn parameter(tensor: &FloatTensor<Self>) -> Option<u64>;

    /// Checks that a tensor is untracked or a leaf of the graph.
    ///
    /// # Panics
    /// Where it is not: gradients add up on their way to the leaves, so a new value of a state would arrive multiplied, summed or cast.
    fn require_leaf(tensor: &FloatTensor<Self>);

    /// The result of an operation, with its backward step where gradients are tracked for one of its operands.
    fn record<S: Step<Self::Inner, N>, const N: usize>(
        operands: [&FloatTensor<Self>; N],
        run: impl FnOnce() -> (FloatTensor<Self::Inner>, S),
    ) -> FloatTensor<Self>;

    /// What a decorator says of operations that can run in FP8.
    fn settings() -> Settings {
        Settings::default()
    }
}

/// What the backward pass takes of an operation with `N` operands, and does with it.
pub trait Step<B: Backend, const N: usize>: Clone + Debug + Send + 'static {
    /// The gradients of the operands, of which `wanted` are asked for, given that of the result.
    fn backward(self, grad: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N];

    /// Takes the gradient of the result and registers those of the operands.
    fn run(ops: Ops<Self, N>, grads: &mut Gradients) {
        let grad = grads.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (node, grad) in ops.parents.iter().zip(ops.state.backward(grad, wanted)) {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// What is said of operations that can run in FP8, attention above all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Whether FP8, and bf16 beside it, is switched off.
    pub is_off: bool,
    /// How products are run.
    pub manner: Manner,
    /// How what backward steps take is kept.
    pub saved: Saved,
    /// Who is told of products, forward and backward, if anybody wants to know.
    pub watch: Option<Watch>,
}

/// Is told of a product right before it runs, on its thread.
pub type Watch = fn(&Watched<'_>);

/// A product that is part of attention.
#[derive(Clone, Debug)]
pub struct Watched<'a> {
    /// Its shape.
    pub gemm: Gemm,
    /// Its role.
    pub role: GemmRole,
    /// Which numbers are multiplied.
    pub precision: AttentionPrecision,
    /// What multiplies them where they are not f32.
    pub target: &'a Target,
    /// The matrix unit of the CPU, where that is the target.
    pub unit: Option<&'static str>,
}

impl<B: Untracked> Graph for B {
    const HAS_GRAPH: bool = false;

    type Inner = B;

    fn is_tracked(_tensor: &FloatTensor<B>) -> bool {
        false
    }

    fn value(tensor: FloatTensor<B>) -> FloatTensor<B> {
        tensor
    }

    fn constant(value: FloatTensor<B>) -> FloatTensor<B> {
        value
    }

    fn leaf(_tensor: &FloatTensor<B>) -> Option<Leaf> {
        None
    }

    fn parameter(_tensor: &FloatTensor<B>) -> Option<u64> {
        None
    }

    fn require_leaf(_tensor: &FloatTensor<B>) {}

    fn record<S: Step<B, N>, const N: usize>(
        _operands: [&FloatTensor<B>; N],
        run: impl FnOnce() -> (FloatTensor<B>, S),
    ) -> FloatTensor<B> {
        run().0
    }
}

impl<B: Graph, C: CheckpointStrategy> Graph for Autodiff<B, C> {
    const HAS_GRAPH: bool = true;

    type Inner = B;

    fn is_tracked(tensor: &FloatTensor<Self>) -> bool {
        tensor.is_tracked()
    }

    fn value(tensor: FloatTensor<Self>) -> FloatTensor<B> {
        host::untracked(tensor)
    }

    fn constant(value: FloatTensor<B>) -> FloatTensor<Self> {
        <FloatTensor<Self>>::new(value)
    }

    fn leaf(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        host::leaf(tensor)
    }

    fn parameter(tensor: &FloatTensor<Self>) -> Option<u64> {
        host::parameter(tensor)
    }

    fn require_leaf(tensor: &FloatTensor<Self>) {
        host::require_leaf(tensor);
    }

    fn record<S: Step<B, N>, const N: usize>(
        operands: [&FloatTensor<Self>; N],
        run: impl FnOnce() -> (FloatTensor<B>, S),
    ) -> FloatTensor<Self> {
        let step = host::begin::<B, C, _, N>(Recorded::<S>(PhantomData), operands);
        // The operands stay until the step is registered: they hold their places in the graph, which another thread may clear up meanwhile.
        let (output, saved) = run();
        match step {
            OpsKind::Tracked(prep) => prep.finish(saved, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn settings() -> Settings {
        B::settings()
    }
}

/// The backward step of an operation. It holds what the operation saved, not nodes of the graph: a gradient checkpoint never runs it again.
#[derive(Debug)]
struct Recorded<S>(PhantomData<S>);

impl<B: Backend, S: Step<B, N>, const N: usize> Backward<B, N> for Recorded<S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        S::run(ops, grads);
    }
}

/// The values of an array of tensors.
pub fn values<B: Graph, const N: usize>(
    tensors: [&FloatTensor<B>; N],
) -> [FloatTensor<B::Inner>; N] {
    tensors.map(|tensor| B::value(tensor.clone()))
}

/// A quantized tensor, a constant of the graph, without it.
pub fn without_graph<B: Graph>(matrix: MatrixOf<B>) -> MatrixOf<B::Inner> {
    matrix.map(&mut (), |_, x| B::value(x), |_, x| x)
}

/// Zeros of this shape, or nothing: what becomes of operands of which one is empty. Their gradients are zeros.
pub fn nothing<B: Graph, const N: usize>(
    operands: [&FloatTensor<B>; N],
    shape: Shape,
) -> FloatTensor<B> {
    B::record(operands, || {
        let [first, ..] = &operands[..] else { unreachable!("there are operands") };
        let (device, dtype) = (host::float_device::<B>(first), first.dtype().into());
        let shapes = operands.map(TensorMetadata::shape);
        let output = <B::Inner as FloatTensorOps<B::Inner>>::float_zeros(shape, &device, dtype);
        (output, Nothing::<B::Inner, N> { shapes, device, dtype })
    })
}

/// The shapes of operands, their device and their type.
#[derive(Clone, Debug)]
struct Nothing<B: Backend, const N: usize> {
    shapes: [Shape; N],
    device: B::Device,
    dtype: FloatDType,
}

impl<B: Backend, const N: usize> Step<B, N> for Nothing<B, N> {
    fn backward(self, _grad: FloatTensor<B>, _wanted: [bool; N]) -> [Option<FloatTensor<B>>; N] {
        self.shapes.map(|shape| Some(B::float_zeros(shape, &self.device, self.dtype)))
    }
}
