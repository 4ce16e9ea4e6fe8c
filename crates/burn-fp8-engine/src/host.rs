//! What is tied to Burn 0.21: its tensors, graph and bytes.
//!
//! The folder `engine` is that of Burn 0.22 as well, in the crate `burn-fp8-next`, which has a file like this one.

use std::any::Any;
use std::sync::Arc;
#[cfg(feature = "flex")]
use std::sync::atomic::AtomicBool;

#[cfg(feature = "flex")]
use burn::tensor::Shape;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{Element, FloatDType, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::ops::{Backward, OpsKind};

use crate::engine::{Leaf, Name, Scalar};

/// The device of a tensor.
pub fn float_device<B: Backend>(tensor: &FloatTensor<B>) -> B::Device {
    B::float_device(tensor)
}

/// The same of integers.
pub fn int_device<B: Backend>(tensor: &IntTensor<B>) -> B::Device {
    B::int_device(tensor)
}

/// The same of truth values.
pub fn bool_device<B: Backend>(tensor: &BoolTensor<B>) -> B::Device {
    B::bool_device(tensor)
}

/// The elements of a tensor that was read, which are of this type.
pub fn numbers<E: Element>(data: TensorData) -> Vec<E> {
    data.into_vec().expect("a tensor has the type that it was made with")
}

/// A tensor with a place in the graph.
pub type Tracked<B> = FloatTensor<Autodiff<B>>;

/// What it holds.
pub fn untracked<B: Backend>(tensor: Tracked<B>) -> FloatTensor<B> {
    tensor.primitive
}

/// The leaf of the graph that it is, if no operation made it.
pub fn leaf<B: Backend>(tensor: &Tracked<B>) -> Option<Leaf> {
    let holders: Arc<dyn Any + Send + Sync> = tensor.rc.clone();
    (tensor.node.order == 0).then(|| Leaf {
        name: Name::Node(tensor.node.id.value),
        holders: Arc::downgrade(&holders),
        is_row_by_row: true,
        node: tensor.is_tracked().then(|| {
            let node: Arc<dyn Any + Send + Sync> = tensor.node.clone();
            Arc::downgrade(&node)
        }),
    })
}

/// What names it in the graph for good, where it is a parameter: whatever changes one makes a new one.
pub fn parameter<B: Backend>(tensor: &Tracked<B>) -> Option<u64> {
    (tensor.is_tracked() && tensor.node.order == 0).then_some(tensor.node.id.value)
}

/// Checks that state is untracked or a leaf of the graph.
///
/// # Panics
/// Where it is not.
pub fn require_leaf<B: Backend>(state: &Tracked<B>) {
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

/// Begins a step of the graph whose result has to be kept, not computed again.
pub fn begin<B: Backend, C: CheckpointStrategy, S: Backward<B, N>, const N: usize>(
    step: S,
    parents: [&Tracked<B>; N],
) -> OpsKind<S, B, S::State, C, N> {
    let nodes = parents.map(|tensor| tensor.node.clone());
    step.prepare::<C>(nodes).compute_bound().stateful()
}

/// A tensor without its graph, nor one of its own.
pub fn constant<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    tensor.detach().set_require_grad(false)
}

/// What Burn holds of a tensor.
pub fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// The number stays on the device; gradients end here.
impl<B: Backend> From<Tensor<B, 1>> for Scalar<FloatTensor<B>> {
    fn from(tensor: Tensor<B, 1>) -> Self {
        Self::Device(primitive(constant(tensor).cast(FloatDType::F32)))
    }
}

#[cfg(feature = "flex")]
pub use bytemuck::Pod;

/// Data of a tensor `shape` whose numbers are computed when they are read first. Whoever may have written other ones in their place sets `is_written`.
#[cfg(feature = "flex")]
pub fn decoded_when_read<E: Element + Pod>(
    shape: Shape,
    is_written: Arc<AtomicBool>,
    decode: impl Fn() -> Vec<E> + Send + Sync + 'static,
) -> TensorData {
    let bytes = held::when_read(shape.num_elements(), is_written, decode);
    TensorData { bytes, shape, dtype: E::dtype() }
}

/// Memory that a tensor's bytes lie in, and that it gives back where it is dropped.
#[cfg(feature = "flex")]
pub struct Held<M>(
    /// The memory.
    pub M,
);

#[cfg(feature = "flex")]
mod held {
    #![allow(unsafe_code, reason = "initialized bytes as such that need not be")]

    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, OnceLock};

    use cubecl_common::bytes::{AllocationController, AllocationProperty, Bytes};

    use super::{Held, Pod};

    /// Numbers, as soon as somebody has read them, and what they are.
    struct Decoded<E, F> {
        numbers: OnceLock<Vec<E>>,
        /// Whether somebody may have changed them.
        is_written: Arc<AtomicBool>,
        len: usize,
        decode: F,
    }

    impl<E, F: Fn() -> Vec<E>> Decoded<E, F> {
        fn numbers(&self) -> &[E] {
            // Not inside of the cell: a thread of rayon's that waits for a part of it may run what reads the same numbers. Then they are decoded twice.
            if self.numbers.get().is_none() {
                let numbers = (self.decode)();
                assert!(numbers.len() == self.len, "as many numbers as were promised");
                let _ = self.numbers.set(numbers);
            }
            self.numbers.get().expect("they have been decoded")
        }
    }

    impl<E: Pod, F: Fn() -> Vec<E>> AllocationController for Decoded<E, F> {
        fn alloc_align(&self) -> usize {
            align_of::<E>()
        }

        fn property(&self) -> AllocationProperty {
            AllocationProperty::Other
        }

        unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
            self.is_written.store(true, Ordering::Relaxed);
            self.numbers();
            let numbers = self.numbers.get_mut().expect("they have been computed");
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
            // SAFETY: the same memory; the caller promises to write nothing that is not initialized.
            unsafe { &mut *(bytes as *mut [u8] as *mut [MaybeUninit<u8>]) }
        }

        fn memory(&self) -> &[MaybeUninit<u8>] {
            let bytes: &[u8] = bytemuck::cast_slice(self.numbers());
            // SAFETY: initialized bytes may be taken for such that need not be.
            unsafe { &*(bytes as *const [u8] as *const [MaybeUninit<u8>]) }
        }
    }

    /// The bytes of `len` numbers that are computed when they are read first; at once with debug assertions, of which `Bytes` has one that reads them.
    pub(super) fn when_read<E: Pod + Send + Sync>(
        len: usize,
        is_written: Arc<AtomicBool>,
        decode: impl Fn() -> Vec<E> + Send + Sync + 'static,
    ) -> Bytes {
        let decoded = Decoded { numbers: OnceLock::new(), is_written, len, decode };
        // SAFETY: all bytes of the memory are initialized, and there are as many: `numbers` panics otherwise. What is held may be shared by threads.
        unsafe { Bytes::from_controller(Box::new(decoded), size_of::<E>() * len) }
    }

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

    #[cfg(test)]
    mod tests {
        use std::sync::atomic::AtomicUsize;

        use super::*;

        #[test]
        fn numbers_are_decoded_once_and_known_to_be_written() {
            let (count, is_written) = (Arc::new(AtomicUsize::new(0)), Arc::<AtomicBool>::default());
            let counted = Arc::clone(&count);
            let mut bytes = when_read(3, Arc::clone(&is_written), move || {
                counted.fetch_add(1, Ordering::Relaxed);
                vec![1f32, 2.0, 3.0]
            });
            let decoded = || count.load(Ordering::Relaxed);
            assert_eq!(decoded(), usize::from(cfg!(debug_assertions)), "not before they are read");
            assert_eq!(bytes[4..8], 2f32.to_le_bytes());
            assert_eq!(bytes[8..], 3f32.to_le_bytes());
            assert!(decoded() == 1 && !is_written.load(Ordering::Relaxed));
            bytes[4..8].copy_from_slice(&5f32.to_le_bytes());
            assert!(decoded() == 1 && is_written.load(Ordering::Relaxed));
            assert_eq!(bytes[4..8], 5f32.to_le_bytes());
        }
    }
}
