//! Runs what needs an NVIDIA GPU on a simulated one: the sources in `xtask/sim/`.

mod jobs;
mod libraries;
mod programs;

use anyhow::Result;

use crate::steps::Steps;
pub use jobs::Size;
use jobs::run_all;
use libraries::Folders;
use programs::Programs;

/// What `cargo test` has to build of this repository for [`run`], and no more.
pub const TESTS: &str = "--locked -p burn-fp8 -p burn-fp8-cublaslt -p burn-fp8-kernels -p char-lm -p digits -p fused_matmul \
    --test program --test ladder --test cuda --test gpu --test simulated \
    --features burn-fp8/cuda,burn-fp8/fusion,burn-fp8-kernels/cuda,examples-common/cuda";

/// Builds the simulation, tests it, and runs the GPU tests on it whose names contain the filter: those that `cargo test` builds with these arguments.
pub fn run(steps: &mut Steps, tests: &[&str], filter: Option<&str>, size: Size) -> Result<()> {
    let folders = steps.step("simulated device: libraries", || {
        let folders = Folders::new()?;
        folders.build()?;
        Ok(folders)
    })?;
    steps.step("simulated device: self test", || folders.self_test())?;
    let programs = steps.step("simulated device: tests to run on it", || Programs::build(tests))?;
    steps.step("simulated device: tests", || run_all(&folders, &programs, filter, size))
}
