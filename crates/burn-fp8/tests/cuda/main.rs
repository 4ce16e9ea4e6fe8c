//! On an NVIDIA GPU: products on its tensor cores against emulation on the same device, and against arithmetic on the host.
//!
//! Ignored elsewhere; `cargo xtask gpu --validate-only` runs them, one process for each module below. Every check runs on CUDA with
//! Burn's Fusion, as Burn has it by default, and without.
#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;
mod support;

mod accuracy;
mod codes;
mod delayed;
mod golden;
mod products;
mod special;
mod stress;
mod threads;
mod training;

use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;

/// CUDA without Fusion.
pub type Unfused = CubeBackend<CudaRuntime, f32, i32, u8>;

/// Makes tests of functions that are generic over the backend, for CUDA without and with Fusion.
macro_rules! on_cuda {
    ($($check:ident),+ $(,)?) => {
        mod unfused {
            $(
                #[test]
                #[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
                fn $check() {
                    super::$check::<crate::Unfused>();
                }
            )+
        }

        #[cfg(feature = "fusion")]
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
