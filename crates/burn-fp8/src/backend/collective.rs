//! As `convert`, for the structs of training on several devices.

use burn::tensor::backend::Backend;
use burn::tensor::backend::distributed::{CollectiveTensor, DistributedBackend, TensorRef};

use super::convert::{Rewrap, SameTensors};

impl<A: Backend, B: SameTensors<A>> Rewrap<TensorRef<B>> for TensorRef<A> {
    fn rewrap(self) -> TensorRef<B> {
        TensorRef(self.0)
    }
}

impl<A: DistributedBackend, B: SameTensors<A> + DistributedBackend> Rewrap<CollectiveTensor<B>>
    for CollectiveTensor<A>
{
    #[allow(unsafe_code)]
    fn rewrap(self) -> CollectiveTensor<B> {
        // SAFETY: nothing reads the tensor here; it goes straight into a `CollectiveTensor` again, so whoever wants it
        // still has to resolve it, and `Fp8Backend::sync_collective` is that of the wrapped backend.
        CollectiveTensor::new(unsafe { self.assume_resolved() })
    }
}
