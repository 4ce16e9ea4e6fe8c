//! Whether a device of CubeCL has tensor cores for FP8, and why not.

use burn_cubecl::CubeRuntime;

use crate::Capability;

/// What a device can do. Asked of the driver once.
pub(super) fn of<R: CubeRuntime>(device: &R::CubeDevice) -> Capability {
    #[cfg(all(test, feature = "wgpu"))]
    if let Some(capability) = pretended() {
        return capability;
    }
    #[cfg(feature = "cuda")]
    if let Some(device) = (device as &dyn core::any::Any).downcast_ref() {
        return super::cuda::capability(device);
    }
    let _ = device;
    Capability::FakeQuantized { reason: "FP8 products run natively on CUDA only".into() }
}

#[cfg(all(test, feature = "wgpu"))]
pub(super) use pretend::{pretend_tensor_cores, pretended};

/// Tensor cores on every device, on this thread: tests run all of the native path, except for the GEMM, without a GPU.
#[cfg(all(test, feature = "wgpu"))]
mod pretend {
    use std::cell::Cell;
    use std::sync::Arc;

    use crate::{Capability, NativeDevice};

    thread_local! {
        static PRETEND: Cell<bool> = const { Cell::new(false) };
    }

    pub(in crate::matmul::cube) struct Pretend;

    pub(in crate::matmul::cube) fn pretend_tensor_cores() -> Pretend {
        PRETEND.set(true);
        Pretend
    }

    impl Drop for Pretend {
        fn drop(&mut self) {
            PRETEND.set(false);
        }
    }

    pub(in crate::matmul::cube) fn pretended() -> Option<Capability> {
        PRETEND.get().then(|| {
            let device = NativeDevice {
                name: "none".into(),
                compute_capability: (0, 0),
                driver: (0, 0),
                cublaslt: "none".into(),
            };
            Capability::Native(Arc::new(device))
        })
    }
}
