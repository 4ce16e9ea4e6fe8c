//! On an NVIDIA GPU: products on its tensor cores, and emulated ones on the same device, against arithmetic on the host.
//!
//! Ignored elsewhere; `cargo xtask gpu --validate-only` runs them, one process for each module below. Every check runs on CUDA with
//! Burn's Fusion, as Burn has it by default, and without. Most are also rehearsed on Flex, where emulation stands in for tensor cores:
//! that shows, on any machine, that a check expects the right thing, since it expects sums in f64 of numbers that the host has rounded.
#![cfg(any(feature = "cuda", feature = "flex"))]

#[path = "../common/mod.rs"]
mod common;
mod support;

mod accuracy;
mod blocks;
#[cfg(feature = "cuda")]
mod codes;
mod delayed;
mod frozen;
#[cfg(feature = "cuda")]
mod golden;
mod host;
mod ladder;
mod layers;
mod products;
mod scaled;
mod special;
mod stress;
mod threads;
mod training;

/// CUDA without Fusion.
#[cfg(feature = "cuda")]
pub type Unfused = burn_cubecl::CubeBackend<burn_cubecl::cubecl::cuda::CudaRuntime, f32, i32, u8>;

/// Makes tests of functions that are generic over the backend, for CUDA without and with Fusion.
macro_rules! on_cuda {
    ($($check:ident),+ $(,)?) => {
        #[cfg(feature = "cuda")]
        mod unfused {
            $(
                #[test]
                #[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
                fn $check() {
                    super::$check::<crate::Unfused>();
                }
            )+
        }

        #[cfg(all(feature = "cuda", feature = "fusion"))]
        mod fused {
            $(
                #[test]
                #[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
                fn $check() {
                    super::$check::<burn::backend::Cuda>();
                }
            )+
        }
    };
}
pub(crate) use on_cuda;

/// The same, and a test of each on Flex that any machine runs.
macro_rules! on_cuda_and_rehearsed {
    ($($check:ident),+ $(,)?) => {
        crate::on_cuda!($($check),+);

        #[cfg(feature = "flex")]
        mod rehearsed {
            $(
                #[test]
                fn $check() {
                    super::$check::<burn::backend::Flex>();
                }
            )+
        }
    };
}
pub(crate) use on_cuda_and_rehearsed;
