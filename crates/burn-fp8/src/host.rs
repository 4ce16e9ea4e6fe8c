//! What is tied to Burn 0.21: its tensors, records and bytes.
//!
//! The folders `config`, `engine`, `product` and `report` are those of Burn 0.22 as well, in the crate `burn-fp8-next`, which has a file like this one.

use std::any::Any;
use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{Element, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::ops::{Backward, OpsKind};

use crate::weights::{Leaf, Name};

pub(crate) fn float_device<B: Backend>(tensor: &FloatTensor<B>) -> B::Device {
    B::float_device(tensor)
}

pub(crate) fn int_device<B: Backend>(tensor: &IntTensor<B>) -> B::Device {
    B::int_device(tensor)
}

pub(crate) fn bool_device<B: Backend>(tensor: &BoolTensor<B>) -> B::Device {
    B::bool_device(tensor)
}

/// The elements of a tensor that was read, which are of this type.
pub(crate) fn numbers<E: Element>(data: TensorData) -> Vec<E> {
    data.into_vec().expect("a tensor has the type that it was made with")
}

/// A tensor with a place in the graph.
pub(crate) type Tracked<B> = FloatTensor<Autodiff<B>>;

/// What it holds.
pub(crate) fn untracked<B: Backend>(tensor: Tracked<B>) -> FloatTensor<B> {
    tensor.primitive
}

/// The leaf of the graph that it is, if no operation made it.
pub(crate) fn leaf<B: Backend>(tensor: &Tracked<B>) -> Option<Leaf> {
    let holders: Arc<dyn Any + Send + Sync> = tensor.rc.clone();
    (tensor.node.order == 0).then(|| Leaf {
        name: Name::Node(tensor.node.id.value),
        holders: Arc::downgrade(&holders),
        node: tensor.is_tracked().then(|| {
            let node: Arc<dyn Any + Send + Sync> = tensor.node.clone();
            Arc::downgrade(&node)
        }),
    })
}

/// What names it in the graph for good, where it is a parameter: whatever changes one makes a new one.
pub(crate) fn parameter<B: Backend>(tensor: &Tracked<B>) -> Option<u64> {
    (tensor.is_tracked() && tensor.node.order == 0).then_some(tensor.node.id.value)
}

/// Begins a step of the graph whose result has to be kept, not computed again.
pub(crate) fn begin<B: Backend, C: CheckpointStrategy, S: Backward<B, N>, const N: usize>(
    step: S,
    parents: [&Tracked<B>; N],
) -> OpsKind<S, B, S::State, C, N> {
    let nodes = parents.map(|tensor| tensor.node.clone());
    step.prepare::<C>(nodes).compute_bound().stateful()
}

/// A tensor without its graph, nor one of its own.
pub(crate) fn constant<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    tensor.detach().set_require_grad(false)
}

pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// Memory that a tensor's bytes lie in, and that it gives back where it is dropped.
#[cfg(feature = "flex")]
pub(crate) struct Held<M>(pub(crate) M);

#[cfg(feature = "flex")]
mod held {
    #![allow(unsafe_code, reason = "initialized bytes as such that need not be")]

    use std::mem::MaybeUninit;

    use cubecl_common::bytes::{AllocationController, AllocationProperty};

    use super::Held;

    impl<M: AsRef<[u64]> + AsMut<[u64]>> AllocationController for Held<M> {
        fn alloc_align(&self) -> usize {
            align_of::<u64>()
        }

        fn property(&self) -> AllocationProperty {
            AllocationProperty::Other
        }

        unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.0.as_mut());
            // SAFETY: the same memory; the caller promises to write nothing that is not initialized.
            unsafe { &mut *(bytes as *mut [u8] as *mut [MaybeUninit<u8>]) }
        }

        fn memory(&self) -> &[MaybeUninit<u8>] {
            let bytes: &[u8] = bytemuck::cast_slice(self.0.as_ref());
            // SAFETY: initialized bytes may be taken for such that need not be.
            unsafe { &*(bytes as *const [u8] as *const [MaybeUninit<u8>]) }
        }
    }
}
