//! Whether a device of CubeCL has tensor cores for FP8, and why not.

use burn_cubecl::CubeRuntime;

use crate::engine::capability::{Capability, Fallback};
use crate::engine::problem::Problem;

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

/// Whether the device has an algorithm for a product, else why not.
pub(super) fn check<R: CubeRuntime>(
    device: &R::CubeDevice,
    problem: &Problem,
) -> Result<(), Fallback> {
    #[cfg(feature = "cuda")]
    if let Some(checked) = super::cuda::check(device, problem) {
        return checked;
    }
    let _ = device;
    match cfg!(test) {
        true => pretended_algorithm(problem.shape[2]).map(|_| ()),
        false => Ok(()),
    }
}

/// For tests without tensor cores: what would run a product. None has an algorithm for this K, on whatever thread.
pub(super) const K_WITHOUT_ALGORITHM: usize = 208;

/// For tests without tensor cores.
pub(super) fn pretended_algorithm(k: usize) -> Result<String, Fallback> {
    match k {
        K_WITHOUT_ALGORITHM => Err(Fallback::NoAlgorithm("no algorithm for this K".into())),
        _ => Ok("decoded".into()),
    }
}

#[cfg(all(test, feature = "wgpu"))]
pub(super) use pretend::{pretend_tensor_cores, pretended};

/// Tensor cores on every device, on this thread: tests run all of the native path, except for the GEMM, without a GPU.
#[cfg(all(test, feature = "wgpu"))]
mod pretend {
    use std::cell::Cell;
    use std::sync::Arc;

    use crate::engine::capability::{Capability, NativeDevice};

    thread_local! {
        static PRETEND: Cell<bool> = const { Cell::new(false) };
    }

    pub(in crate::engine::cube) struct Pretend;

    pub(in crate::engine::cube) fn pretend_tensor_cores() -> Pretend {
        PRETEND.set(true);
        Pretend
    }

    impl Drop for Pretend {
        fn drop(&mut self) {
            PRETEND.set(false);
        }
    }

    pub(in crate::engine::cube) fn pretended() -> Option<Capability> {
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
