//! Whether a device of CubeCL has tensor cores for FP8, and why not.

use std::cell::Cell;
use std::sync::Arc;

use burn_cubecl::CubeRuntime;

use crate::engine::capability::{Capability, Fallback, NativeDevice};
use crate::engine::problem::Problem;

/// What a device can do. Asked of the driver once.
pub(super) fn of<R: CubeRuntime>(device: &R::CubeDevice) -> Capability {
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
    match pretended() {
        Some(_) => pretended_algorithm(problem.shape[2]).map(|_| ()),
        None => Ok(()),
    }
}

/// For tests: tensor cores on every device, on this thread, until what this returns is dropped. All of the native path runs, except for the GEMM, which is
/// emulated.
#[doc(hidden)]
pub fn pretend_tensor_cores() -> Pretend {
    PRETEND.set(true);
    Pretend
}

/// For tests: no product of this K has an algorithm on pretended tensor cores.
#[doc(hidden)]
pub const K_WITHOUT_ALGORITHM: usize = 208;

#[doc(hidden)]
pub struct Pretend;

thread_local! {
    static PRETEND: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Pretend {
    fn drop(&mut self) {
        PRETEND.set(false);
    }
}

fn pretended() -> Option<Capability> {
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

/// What would run a product on pretended tensor cores.
pub(super) fn pretended_algorithm(k: usize) -> Result<String, Fallback> {
    match k {
        K_WITHOUT_ALGORITHM => Err(Fallback::NoAlgorithm("no algorithm for this K".into())),
        _ => Ok("decoded".into()),
    }
}
