//! Which backend a program runs on.

use anyhow::{Result, anyhow};
use burn::backend::{Flex, NdArray};
use burn_fp8::Fp8Matmul;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A backend. Flex and NdArray run on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Burn's default CPU backend; FP8 quantizes with SIMD
    Flex,
    /// Burn's other CPU backend; FP8 quantizes with tensor operations, as on any backend without code of its own
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
    ///
    /// # Errors
    /// Those of the program.
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

    /// Takes the names of those backends alone that the program was built with.
    pub fn built() -> impl TypedValueParser<Value = Self> {
        let built = Self::value_variants().iter().filter(|backend| backend.is_built());
        PossibleValuesParser::new(built.filter_map(ValueEnum::to_possible_value))
            .try_map(|name| Self::from_str(&name, false))
    }

    fn is_built(self) -> bool {
        match self {
            Self::Flex | Self::Ndarray => true,
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// Runs a program of this package on the backend.
    ///
    /// # Errors
    /// Where the package was built without the backend, where there is no CUDA device, and those of the program.
    pub fn run<P: OnBackend>(self, package: &str, program: P) -> Result<P::Output> {
        match self {
            Self::Flex => program.on::<Flex>(),
            Self::Ndarray => program.on::<NdArray>(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => program.on::<burn::backend::Wgpu>(),
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                anyhow::Context::context(burn_fp8_cublaslt::require_device(0), "--backend cuda")?;
                program.on::<burn::backend::Cuda>()
            }
            #[allow(unreachable_patterns, reason = "with both features there is no other")]
            backend => {
                let name = backend.as_str();
                Err(anyhow!(
                    "this program was built without --backend {name}: cargo run --release -p {package} --features {name}"
                ))
            }
        }
    }
}
