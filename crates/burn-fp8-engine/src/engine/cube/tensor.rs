//! Burn's tensors as the kernels take them, and back.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_kernels::{
    Element, Input, KernelError, Scalar as KernelScalar, ScaleRule as KernelRule,
};

use crate::engine::request::ScaleRule;
use crate::engine::scalar::Scalar;

/// The tensor for a kernel. Panics where it is not f32, f16, bf16 or flex32: those do not get here.
fn input<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Input<'_> {
    let element = match tensor.dtype {
        DType::F32 | DType::Flex32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        other => panic!("FP8 takes tensors of f32, f16, bf16 and flex32, not of {other:?}"),
    };
    Input {
        handle: &tensor.handle,
        shape: tensor.meta.shape(),
        strides: tensor.meta.strides(),
        element,
    }
}

/// Runs a kernel on a tensor in the layout that it has, or, where that starts at an odd address, on a copy.
pub(super) fn run<R: CubeRuntime, T>(
    tensor: CubeTensor<R>,
    kernel: impl Fn(&Input<'_>) -> Result<T, KernelError>,
) -> T {
    match kernel(&input(&tensor)) {
        Ok(output) => output,
        Err(KernelError::Misaligned { .. }) => {
            // A copy of its own, also where the layout is contiguous already.
            unwrap(kernel(&input(&into_contiguous(tensor.copy()))))
        }
        Err(error) => panic!("burn-fp8: {error}"),
    }
}

/// Panics where a kernel could not be launched.
pub(super) fn unwrap<T>(result: Result<T, KernelError>) -> T {
    result.unwrap_or_else(|error| panic!("burn-fp8: {error}"))
}

/// A tensor that a kernel wrote, row by row.
pub(super) fn output<R: CubeRuntime>(
    like: &CubeTensor<R>,
    handle: Handle,
    shape: impl Into<Shape>,
    dtype: DType,
) -> CubeTensor<R> {
    CubeTensor::new_contiguous(
        like.client.clone(),
        like.device.clone(),
        shape.into(),
        handle,
        dtype,
    )
}

/// A number that a kernel left on the device.
pub(super) fn number<R: CubeRuntime>(like: &CubeTensor<R>, handle: Handle) -> CubeTensor<R> {
    output(like, handle, [1], DType::F32)
}

/// A number for a kernel.
pub(super) fn scalar<R: CubeRuntime>(scalar: &Scalar<CubeTensor<R>>) -> KernelScalar {
    match scalar {
        Scalar::Host(value) => KernelScalar::Host(*value),
        Scalar::Device(tensor) => KernelScalar::Device(tensor.handle.clone()),
    }
}

/// A rule for a kernel.
pub(super) fn rule<R: CubeRuntime>(
    like: &CubeTensor<R>,
    rule: &ScaleRule<CubeTensor<R>>,
) -> KernelRule {
    match rule {
        ScaleRule::Current(recipe) | ScaleRule::Delayed(Scalar::Host(0.0), recipe) => {
            KernelRule::Current(*recipe)
        }
        ScaleRule::Delayed(Scalar::Host(amax), recipe) => KernelRule::Delayed {
            from: like.client.create_from_slice(&amax.to_ne_bytes()),
            recipe: *recipe,
        },
        ScaleRule::Delayed(Scalar::Device(amax), recipe) => {
            KernelRule::Delayed { from: amax.handle.clone(), recipe: *recipe }
        }
        ScaleRule::Given(scale, overflow) => {
            KernelRule::Given { scale: self::scalar(scale), overflow: *overflow }
        }
    }
}
