//! Which backend a program runs on.

use anyhow::{Result, anyhow};
use burn::backend::Flex;
use burn_fp8::Fp8Matmul;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A backend. Flex is always there; each of the others is built in by the feature of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// Burn's default CPU backend; FP8 quantizes with SIMD
    Flex,
    /// Burn's other CPU backend; FP8 quantizes with tensor operations, as on any backend without code of its own; built with the feature `ndarray`
    Ndarray,
    /// GPUs through WebGPU, or Mesa's software Vulkan; built with the feature `wgpu`
    Wgpu,
    /// NVIDIA GPUs, FP8 on tensor cores from compute capability 8.9; built with the feature `cuda`
    Cuda,
}

/// A program that is generic over the backend.
pub trait OnBackend {
    /// What it returns.
    type Output;

    /// Runs it on the default device of this backend.
    fn on<B: Fp8Matmul>(self) -> Result<Self::Output>;
}

impl BackendName {
    /// The name that `--backend` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }

    /// Runs a program of this package on the backend.
    ///
    /// # Errors
    /// Where the package was built without the backend, where there is no CUDA device, and those of the program.
    pub fn run<P: OnBackend>(self, package: &str, program: P) -> Result<P::Output> {
        match self {
            Self::Flex => program.on::<Flex>(),
            #[cfg(feature = "ndarray")]
            Self::Ndarray => program.on::<burn::backend::NdArray>(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => program.on::<burn::backend::Wgpu>(),
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                anyhow::Context::context(burn_fp8_cublaslt::require_device(0), "--backend cuda")?;
                program.on::<burn::backend::Cuda>()
            }
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            backend => {
                let name = backend.as_str();
                Err(anyhow!(
                    "this program was built without --backend {name}: cargo run --release -p {package} --features {name}"
                ))
            }
        }
    }
}
