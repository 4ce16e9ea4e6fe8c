//! Products on the tensor cores of CUDA devices, through cuBLASLt.

mod blocks;
mod buffer;
mod device;
mod gemm;
mod launch;
mod problem;
mod scaled;

pub(super) use blocks::gemm as gemm_of_blocks;
pub(super) use device::capability;
pub(super) use gemm::gemm;
pub(super) use launch::describe;
pub(super) use problem::check;
pub(super) use scaled::scaled_matmul;
