//! As `convert`, for the structs of training on several devices.

use burn_backend::Backend;
#[cfg(not(feature = "burn-0-23"))]
use burn_backend::distributed::CollectiveTensor;
use burn_backend::distributed::TensorRef;

use super::convert::{Rewrap, SameTensors};

impl<A: Backend, B: SameTensors<A>> Rewrap<TensorRef<B>> for TensorRef<A> {
    fn rewrap(self) -> TensorRef<B> {
        TensorRef(self.0)
    }
}

#[cfg(not(feature = "burn-0-23"))]
impl<A: Backend, B: SameTensors<A>> Rewrap<CollectiveTensor<B>> for CollectiveTensor<A> {
    #[allow(unsafe_code)]
    fn rewrap(self) -> CollectiveTensor<B> {
        // SAFETY: nothing reads the tensor here; it goes straight into a `CollectiveTensor` again, so whoever wants it still has to resolve it, and
        // `Fp8Backend::sync_collective` is that of the wrapped backend.
        CollectiveTensor::new(unsafe { self.assume_resolved() })
    }
}
