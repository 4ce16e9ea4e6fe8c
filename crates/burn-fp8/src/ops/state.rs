//! State as leaves of a graph, whose "gradients" are its new values.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::Ops;
use burn::tensor::TensorMetadata;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::flax;
use crate::engine::tensor::reshape;
use crate::host::primitive;

type AutodiffTensor<B, C> = FloatTensor<Autodiff<B, C>>;

/// Checks that state is untracked or a leaf of the graph.
///
/// # Panics
/// Where it is not: gradients add up on their way to the leaves, so a new value would arrive multiplied, summed or cast.
pub(crate) fn require_leaf<B: Backend, C: CheckpointStrategy>(state: &AutodiffTensor<B, C>) {
    assert!(
        !state.is_tracked() || state.node.parents.is_empty(),
        "FP8 state must be a leaf of the graph, but this tensor was computed from a tracked one: pass the parameter itself, \
         without reshape, cast, to_device or arithmetic (after moving a model: Module::fork, not to_device), or detach it"
    );
    #[cfg(feature = "distributed")]
    assert!(
        state.node.distributed_params.is_none(),
        "FP8 state cannot be a distributed parameter: its new values would be summed or averaged over devices like gradients. \
         Mark the weights only"
    );
}

/// Registers new values for the state whose nodes are the parents number `first` and `first + 1`, scale and history, where they are
/// tracked. What other uses have registered is kept where it is larger.
pub(crate) fn register<B: Backend, S, const N: usize>(
    grads: &mut Gradients,
    ops: &Ops<S, N>,
    first: usize,
    values: [FloatTensor<B>; 2],
) {
    for (node, value) in ops.parents[first..].iter().zip(values) {
        let Some(node) = node else { continue };
        // A throw-away tensor with the node of the leaf: the only way to the gradient that is registered so far.
        let mut leaf = <FloatTensor<Autodiff<B>>>::new(value.clone());
        leaf.node = node.clone();
        let value = match grads.remove::<B>(&leaf) {
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
