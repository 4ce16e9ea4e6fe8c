//! What is tied to Burn 0.22: its graph and bytes. The file of this name in `burn-fp8` is that of Burn 0.21.

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::ops::{Backward, OpsKind};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, Element, TensorData, TensorMetadata};

use crate::engine::Leaf;

pub(crate) fn float_device<B: Backend>(tensor: &FloatTensor<B>) -> B::Device {
    tensor.device()
}

pub(crate) fn int_device<B: Backend>(tensor: &IntTensor<B>) -> B::Device {
    tensor.device()
}

pub(crate) fn bool_device<B: Backend>(tensor: &BoolTensor<B>) -> B::Device {
    tensor.device()
}

/// The elements of a tensor that was read, which are of this type.
pub(crate) fn numbers<E: Element>(data: TensorData) -> Vec<E> {
    data.try_to_vec().expect("a tensor has the type that it was made with")
}

/// A tensor with a place in the graph.
pub(crate) type Tracked<B> = FloatTensor<Autodiff<B>>;

/// What it holds.
pub(crate) fn untracked<B: Backend>(tensor: Tracked<B>) -> FloatTensor<B> {
    tensor.into_primitive()
}

/// Burn 0.22 does not tell which tensors are leaves of the graph.
pub(crate) fn leaf<B: Backend>(_tensor: &Tracked<B>) -> Option<Leaf> {
    None
}

/// What names it in the graph for good, where it is tracked: whatever changes a parameter makes a new one.
pub(crate) fn parameter<B: Backend>(tensor: &Tracked<B>) -> Option<u64> {
    tensor.is_tracked().then(|| tensor.id().value)
}

/// Burn 0.22 does not tell which tensors are leaves of the graph, and nothing here has state that is one.
pub(crate) fn require_leaf<B: Backend>(_state: &Tracked<B>) {}

/// Begins a step of the graph whose result has to be kept, not computed again.
pub(crate) fn begin<B: Backend, C: CheckpointStrategy, S: Backward<B, N>, const N: usize>(
    step: S,
    parents: [&Tracked<B>; N],
) -> OpsKind<S, B, S::State, C, N> {
    let nodes = parents.map(|tensor| tensor.node());
    step.prepare::<C>(nodes).compute_bound().stateful()
}

/// Memory that a tensor's bytes lie in, and that it gives back where it is dropped.
#[cfg(feature = "flex")]
pub(crate) struct Held<M>(pub(crate) M);

#[cfg(feature = "flex")]
mod held {
    #![allow(unsafe_code, reason = "initialized bytes as such that need not be")]

    use std::mem::MaybeUninit;

    use cubecl_environment::bytes::{
        AccessError, AccessPolicy, AllocationController, AllocationProperty,
    };

    use super::Held;

    impl<M: AsRef<[u64]> + AsMut<[u64]>> AllocationController for Held<M> {
        fn alloc_align(&self) -> usize {
            align_of::<u64>()
        }

        fn property(&self) -> AllocationProperty {
            AllocationProperty::Other
        }

        unsafe fn memory_mut(
            &mut self,
            _policy: AccessPolicy,
        ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.0.as_mut());
            // SAFETY: the same memory; the caller promises to write nothing that is not initialized.
            Ok(unsafe { &mut *(bytes as *mut [u8] as *mut [MaybeUninit<u8>]) })
        }

        fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
            let bytes: &[u8] = bytemuck::cast_slice(self.0.as_ref());
            // SAFETY: initialized bytes may be taken for such that need not be.
            Ok(unsafe { &*(bytes as *const [u8] as *const [MaybeUninit<u8>]) })
        }
    }
}
