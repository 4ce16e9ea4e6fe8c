//! On an NVIDIA GPU: products on its tensor cores, and emulated ones on the same device, against arithmetic on the host.
//!
//! Ignored elsewhere; `cargo xtask gpu --validate-only` runs them, one process for each module below. Every check runs on CUDA with
//! Burn's Fusion, as Burn has it by default, and without. Most are also rehearsed on Flex, where emulation stands in for tensor cores:
//! that shows, on any machine, that a check expects the right thing, since it expects sums in f64 of numbers that the host has rounded.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;
mod support;

mod accuracy;
mod blocks;
#[cfg(feature = "cuda")]
mod codes;
mod delayed;
mod layers;
mod products;
mod scaled;
#[cfg(all(feature = "cuda", feature = "fusion"))]
mod simulated;
mod special;
mod stress;
#[cfg(feature = "cuda")]
mod sums;
mod threads;
mod training;

/// CUDA without Fusion.
#[cfg(feature = "cuda")]
pub type Unfused = burn_cubecl::CubeBackend<burn_cubecl::cubecl::cuda::CudaRuntime, f32, i32, u8>;

/// Makes tests of checks that are generic over the backend, for CUDA without and with Fusion.
macro_rules! on_cuda {
    ($checks:tt) => {
        crate::common::tests_on!(
            #[cfg(feature = "cuda")] unfused: crate::Unfused, $checks,
            needs "an NVIDIA GPU of compute capability 8.9 or higher"
        );
        crate::common::tests_on!(
            #[cfg(all(feature = "cuda", feature = "fusion"))] fused: burn::backend::Cuda, $checks,
            needs "an NVIDIA GPU of compute capability 8.9 or higher"
        );
    };
}

/// The same, and a test of each on Flex that any machine runs.
macro_rules! on_cuda_and_rehearsed {
    ($checks:tt) => {
        crate::on_cuda!($checks);
        crate::common::tests_on!(#[cfg(feature = "flex")] rehearsed: burn::backend::Flex, $checks);
    };
}
pub(crate) use {on_cuda, on_cuda_and_rehearsed};
