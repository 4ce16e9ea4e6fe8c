//! The weight of a frozen layer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::matmul::Codes;
use crate::{Fp8Codes, Fp8Tensor};

/// A weight `[d_input, d_output]` in the layout that the last product took: row by row for emulated ones, column by column for tensor
/// cores.
///
/// Clones share it: what one of them has moved need not be moved by the others, and there is one copy.
#[derive(Clone, Debug)]
pub(super) struct Weight<B: Backend> {
    dims: [usize; 2],
    held: Arc<Mutex<Fp8Tensor<B, 2>>>,
}

impl<B: Backend> Weight<B> {
    pub(super) fn new(weight: Fp8Tensor<B, 2>) -> Self {
        Self { dims: weight.dims(), held: Arc::new(Mutex::new(weight)) }
    }

    fn lock(&self) -> MutexGuard<'_, Fp8Tensor<B, 2>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Fp8Tensor<B, 2> {
        self.lock().clone()
    }

    /// The codes row by row, of the weight or of its transpose. They stay in this layout.
    pub(super) fn laid_out(&self, of_transpose: bool) -> Codes<B> {
        let mut held = self.lock();
        if held.is_transposed() != of_transpose {
            *held = held.laid_out(of_transpose);
        }
        held.codes().codes().clone()
    }

    /// The codes row by row.
    pub(super) fn codes(&self) -> Fp8Codes<B, 2> {
        self.get().laid_out(false).codes().clone()
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        self.dims
    }

    pub(super) fn to_device(&self, device: &B::Device) -> Self {
        Self::new(self.get().to_device(device))
    }
}

impl<B: AutodiffBackend> Weight<B> {
    pub(super) fn inner(&self) -> Weight<B::InnerBackend> {
        Weight::new(self.get().inner())
    }

    pub(super) fn from_inner(weight: &Weight<B::InnerBackend>) -> Self {
        Self::new(Fp8Tensor::from_inner(weight.get()))
    }
}
