//! Products on the tensor cores of CUDA devices, through cuBLASLt.

mod device;
mod launch;
mod problem;
mod scaled;

use core::any::Any;

use burn::tensor::Shape;
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::client::ComputeClient;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::PADDING;
use burn_fp8_cublaslt::Launch;

pub(super) use device::capability;
pub(super) use launch::{Call, describe, launch};
pub(super) use problem::check;
pub(super) use scaled::scaled_matmul;

use crate::engine::backend::Fp8Engine;
use crate::engine::capability::Fallback;
use crate::engine::matrix::{GemmOperand, GemmOptions};
use crate::engine::problem::NativeProblem;
use crate::engine::scalar::Scalar;
use problem::plan_of;

/// A device with FP8 tensor cores, and its ordinal.
pub(super) type Device<'a> = (&'a ComputeClient<CudaRuntime>, usize);

/// The device of a tensor, where it is one of CUDA with FP8 tensor cores.
pub(super) fn device_of<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<Device<'_>> {
    let device: &CudaDevice = (&tensor.device as &dyn Any).downcast_ref()?;
    let client = (&tensor.client as &dyn Any).downcast_ref()?;
    capability(device).is_native().then_some((client, device.index))
}

/// The product `[M, K] · [N, K]ᵀ`, and what runs it. `None` where there are no tensor cores.
///
/// Rows of the output are as long as N padded; the tensor returned leaves the padding out.
///
/// # Errors
/// As [`launch`].
pub(super) fn gemm<B, R: CubeRuntime>(
    lhs: &GemmOperand<B>,
    rhs: &GemmOperand<B>,
    options: &GemmOptions,
) -> Option<Result<(CubeTensor<R>, Launch), Fallback>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let device = device_of(&lhs.words)?;
    let (client, _) = device;
    let (m, n) = (lhs.rows, rhs.rows);
    let padded = n.next_multiple_of(PADDING);
    let problem = plan_of(&NativeProblem::of_gemm([lhs, rhs], options));
    let output = client.empty(m * padded * options.dtype.size());
    let call = Call::new(words(&lhs.words), words(&rhs.words), output.clone())
        .scaled::<B, R>(client, [&lhs.scale, &rhs.scale]);
    Some(launch(device, problem, call).map(|launch| {
        let shape = Shape::new([m, n]);
        let tensor = CubeTensor::new(
            lhs.words.client.clone(),
            output,
            Metadata::new(shape, strides![padded, 1]),
            lhs.words.device.clone(),
            options.dtype,
        );
        (tensor, launch)
    }))
}

/// The buffer of codes, row by row.
pub(super) fn words<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Handle {
    into_contiguous(tensor.clone()).handle
}

/// A scale in a buffer.
pub(super) fn on_device<B, R: CubeRuntime>(
    client: &ComputeClient<CudaRuntime>,
    scale: &Scalar<B>,
) -> Handle
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    match scale {
        Scalar::Host(value) => client.create_from_slice(&value.to_ne_bytes()),
        Scalar::Device(tensor) => tensor.handle.clone(),
    }
}
