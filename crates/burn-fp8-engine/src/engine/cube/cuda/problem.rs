//! A product in the terms of cuBLASLt, and whether that has an algorithm for it.

use core::any::Any;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use burn::tensor::DType;
use burn_cubecl::cubecl::Runtime;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_fp8_core::PADDING;
use burn_fp8_cublaslt as lt;

use super::device::cublaslt;
use super::launch::{failed, not_run};
use crate::engine::capability::Fallback;
use crate::engine::problem::{Problem, ProblemOutput};
use crate::engine::product::Activation;

/// The product as cuBLASLt is given it: N and K padded, and M for blocks of 128. The operands of a batch lie one after the other.
pub(super) fn plan_of(problem: &Problem) -> lt::ScaledMatmul {
    let [m, n, k] = problem.shape;
    let [n, padded_k] = [n, k].map(|size| size.next_multiple_of(PADDING) as u64);
    let scales = match problem.blocks {
        None if problem.host_factor => lt::Scales::None,
        None => lt::Scales::PerTensor,
        Some([[1, usize::MAX], [1, usize::MAX]]) => lt::Scales::PerRow,
        Some([a, b]) => lt::Scales::Blocks { a: block_scale(a), b: block_scale(b) },
    };
    let multiple = match scales {
        lt::Scales::Blocks { a: lt::BlockScale::Row128 | lt::BlockScale::Square128, .. } => 4,
        _ => 1,
    };
    let m = m.next_multiple_of(multiple) as u64;
    let batch = match problem.batch {
        1 => lt::Batch::ONE,
        count => lt::Batch { count: count as u64, a: m * padded_k, b: n * padded_k, d: m * n },
    };
    let [a, b] = problem.formats;
    let output = match problem.output {
        ProblemOutput::Float(dtype) => data_type(dtype.into()),
        ProblemOutput::Fp8(format) => lt::DataType::Fp8(format),
    };
    lt::ScaledMatmul {
        batch,
        c: problem.added.map(|dtype| lt::Matrix { dtype: data_type(dtype), ld: n }),
        scales,
        scaled_d: output.is_fp8(),
        amax_d: problem.amax,
        accumulation: match problem.fast_accumulation {
            true => lt::Accumulation::Fast,
            false => lt::Accumulation::Precise,
        },
        epilogue: lt::Epilogue {
            activation: match problem.activation {
                Activation::None => lt::Activation::None,
                Activation::Relu => lt::Activation::Relu,
                Activation::Gelu => lt::Activation::Gelu,
            },
            bias: problem.bias.map(data_type),
        },
        ..lt::ScaledMatmul::new(m, n, padded_k, a, b, output)
    }
}

/// Blocks by their rows, and their elements along K.
pub(super) fn block_scale(block: [usize; 2]) -> lt::BlockScale {
    match block {
        [1, 32] => lt::BlockScale::Row32,
        [1, _] => lt::BlockScale::Row128,
        _ => lt::BlockScale::Square128,
    }
}

/// The type of an output, of C or of a bias.
fn data_type(dtype: DType) -> lt::DataType {
    match dtype {
        DType::BF16 => lt::DataType::Bf16,
        DType::F16 => lt::DataType::F16,
        _ => lt::DataType::F32,
    }
}

/// Products that were found to have an algorithm, by the ordinal of their device.
static POSSIBLE: Mutex<Option<HashSet<(usize, Problem)>>> = Mutex::new(None);

/// Whether cuBLASLt has an algorithm for a product, else why not. The thread that feeds the device is asked once for each product:
/// the caller waits for it then, though not for the device. Of a batch it is asked as if matrices lay one after the other.
///
/// `None` where the device is none of CUDA.
pub(in crate::engine::cube) fn check(
    device: &dyn Any,
    problem: &Problem,
) -> Option<Result<(), Fallback>> {
    let device: &CudaDevice = device.downcast_ref()?;
    let key = (device.index, *problem);
    let lock = || POSSIBLE.lock().unwrap_or_else(PoisonError::into_inner);
    if lock().get_or_insert_default().contains(&key) {
        return Some(Ok(()));
    }
    let client = CudaRuntime::client(device);
    // Any buffer: resolving it makes the context of the device current to that thread.
    let buffer = client.empty(256);
    let (index, plan) = (device.index, plan_of(problem));
    let prepared = client.exclusive(|| {
        let _resource = client.get_resource(buffer).map_err(failed)?;
        cublaslt(index)?.prepare(&plan).map_err(not_run)
    });
    let prepared = prepared.unwrap_or_else(|error| Err(failed(error)));
    Some(prepared.map(|_| {
        lock().get_or_insert_default().insert(key);
    }))
}
