//! Devices and buffers of CubeCL, as cuBLASLt takes them.

use core::any::Any;

use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::client::ComputeClient;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::device::capability;
use crate::engine::scalar::Scalar;

/// A device with FP8 tensor cores, and its ordinal.
pub(super) type Device<'a> = (&'a ComputeClient<CudaRuntime>, usize);

/// The device of a tensor, where it is one of CUDA with FP8 tensor cores.
pub(super) fn device_of<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<Device<'_>> {
    let device: &CudaDevice = (&tensor.device as &dyn Any).downcast_ref()?;
    let client = (&tensor.client as &dyn Any).downcast_ref()?;
    capability(device).is_native().then_some((client, device.index))
}

/// The buffer of codes, row by row.
pub(super) fn words<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Handle {
    into_contiguous(tensor.clone()).handle
}

/// A scale in a buffer.
pub(super) fn on_device<R: CubeRuntime>(
    client: &ComputeClient<CudaRuntime>,
    scale: &Scalar<CubeTensor<R>>,
) -> Handle {
    match scale {
        Scalar::Host(value) => client.create_from_slice(&value.to_ne_bytes()),
        Scalar::Device(tensor) => tensor.handle.clone(),
    }
}
