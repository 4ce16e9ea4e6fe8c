//! What groups of benchmarks are told, and the backends that they measure.

use std::path::PathBuf;
use std::time::Duration;

use burn::backend::Cuda;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;

use crate::device::Gpu;
use crate::torch::Torch;

/// CUDA as Burn has it by default.
pub type Fused = Cuda;
/// Without Fusion.
pub type Unfused = CubeBackend<CudaRuntime, f32, i32, u8>;

/// What a group needs to know.
pub struct Options {
    pub gpu: Gpu,
    pub torch: Option<Torch>,
    pub out: PathBuf,
    pub quick: bool,
    pub time: Duration,
}

impl Options {
    /// Samples of which the median is taken.
    pub fn samples(&self) -> usize {
        if self.quick { 7 } else { 15 }
    }
}
