//! What groups of benchmarks are told, the backends that they measure, and where measurements go.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use burn::backend::Cuda;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use examples_common::write_json;

use crate::device::Gpu;
use crate::rows::Row;
use crate::torch::Torch;

/// CUDA as Burn has it by default.
pub type Fused = Cuda;
/// Without Fusion.
pub type Unfused = CubeBackend<CudaRuntime, f32, i32, u8>;

/// What a group needs to know.
pub struct Options {
    pub gpu: Gpu,
    pub torch: Option<Torch>,
    pub quick: bool,
    pub time: Duration,
}

impl Options {
    /// Samples of which the median is taken.
    pub fn samples(&self) -> usize {
        if self.quick { 7 } else { 15 }
    }
}

/// The measurements so far: a run that is cut short has those before it.
pub struct Sink {
    rows: Vec<Row>,
    json: Option<PathBuf>,
}

impl Sink {
    /// With the file that holds all rows, if there is to be one.
    pub fn new(json: Option<PathBuf>) -> Self {
        Self { rows: vec![], json }
    }

    /// Adds rows and writes all.
    pub fn add(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<()> {
        self.rows.extend(rows);
        self.json.as_ref().map_or(Ok(()), |path| write_json(path, &self.rows))
    }

    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}
