//! What `cargo xtask test` runs, and with which features.

use anyhow::{Context, Result};

use crate::delegate::{self, Mode};
use crate::licences;
use crate::package;
use crate::repository;
use crate::sim::{self, Size};
use crate::steps::Steps;

/// How much of the suite to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    Full,
    /// Without wgpu and without the backends that are only checked: for the minutes between two edits.
    Quick,
}

/// Backends whose tests run on any machine. wgpu runs on Mesa's lavapipe where there is no GPU.
///
/// Tests on CUDA are ignored here, and run on the simulated device afterwards: one set of features for both. The kernels' feature `cuda` is
/// also that of tests which compile them with NVRTC. Examples are built without GPUs, on which clippy checks their types: each backend more is compiled in five programs.
/// `cargo xtask sim` trains them on CUDA, and `cargo test -p char-lm --features wgpu` on wgpu.
pub const TESTED: &str = "burn-fp8/flex,burn-fp8/ndarray,burn-fp8/wgpu,burn-fp8/cuda,burn-fp8/fusion,burn-fp8/router,\
    burn-fp8-kernels/wgpu,burn-fp8-kernels/cuda,char-lm/mpi,burn-fp8/float8,burn-fp8/vision,burn-fp8-train/mpi,burn-fp8-next/device";
const TESTED_QUICK: &str = "burn-fp8/flex,burn-fp8/ndarray,burn-fp8/float8";

/// Every backend, for clippy, which checks types as well: most need a vendor's library or a server to run.
///
/// LibTorch's bindings pass without the library because xtask's feature asks for their documentation mode.
pub const ALL_BACKENDS: &str = "burn-fp8/flex,burn-fp8/ndarray,burn-fp8/vulkan,burn-fp8/candle,burn-fp8/rocm,burn-fp8/cuda,\
    burn-fp8/router,burn-fp8/remote,burn-fp8/fusion,burn-fp8/tch,burn-fp8/vision,burn-fp8-train/mpi,burn-fp8-next/mpi,burn-fp8-next/device,burn-fp8-next/wgpu,xtask/libtorch-check,burn-fp8-kernels/wgpu,burn-fp8-kernels/cuda,\
    burn-fp8-bench/cuda,char-lm/cuda,char-lm/wgpu,char-lm/mpi,digits/cuda,digits-next/device,fused_matmul/wgpu,fused_matmul/cuda,\
    generate/wgpu,generate/cuda,shared-features/cubecl";

/// Sets of features that are checked besides: packages, and features. Beside `shared-features` they find other people's crates where [`ALL_BACKENDS`] has left
/// them, and check those of Burn and CubeCL alone, which have few features here.
pub const NO_BACKEND: &[&str] =
    &["-p", "burn-fp8", "-p", "burn-fp8-next", "--features", "shared-features/checked"];
/// Burn's `distributed` takes Flex and NdArray away, so it stands alone with CUDA.
pub const DISTRIBUTED: &[&str] = &[
    "-p",
    "burn-fp8",
    "--features",
    "shared-features/cubecl,burn-fp8/cuda,burn-fp8/fusion,burn-fp8/distributed",
];
/// What comes before them.
pub const FEW: &[&str] = &["-p", "shared-features", "--no-default-features"];

/// The tests that compare with other libraries' runs. They use Flex's matrix unit where there is one; here they do without.
const REFERENCE: [&str; 4] = ["--test", "cpu", "--", "reference::"];

/// burn-fp8-next on the Burn that comes next: a manifest of its own, since a workspace has one package of a name.
pub const BURN_0_23: [&str; 4] =
    ["--manifest-path", "crates/burn-fp8-next/burn-0.23/Cargo.toml", "--features", "device"];

/// What forces a unit: see `burn-fp8-cpu`.
const UNIT: &str = "BURN_FP8_CPU_UNIT";

/// Runs the suite and stops at the first step that fails.
pub fn run(steps: &mut Steps, scope: Scope) -> Result<()> {
    steps.cargo("formatting", &["fmt", "--all", "--check"])?;
    match scope {
        Scope::Quick => {
            clippy(steps, "clippy", &["--workspace", "--all-targets", "--features", TESTED_QUICK])?
        }
        // Few invocations: each set of features compiles its own copy of burn.
        Scope::Full => {
            clippy(
                steps,
                "clippy: all backends",
                &["--workspace", "--all-targets", "--features", ALL_BACKENDS],
            )?;
            let documentation =
                ["doc", "--locked", "--workspace", "--no-deps", "--features", ALL_BACKENDS];
            steps.cargo("documentation", &documentation)?;
            clippy(steps, "clippy: no backend", &[FEW, NO_BACKEND].concat())?;
            clippy(steps, "clippy: distributed", &[FEW, DISTRIBUTED].concat())?;
        }
    }
    steps.step("delegation", || delegate::run(Mode::Check))?;
    steps.step("licences", licences::run)?;
    steps.step("packages", package::run)?;

    let features = match scope {
        Scope::Quick => TESTED_QUICK,
        Scope::Full => TESTED,
    };
    let built = ["--locked", "--workspace", "--all-targets", "--features", features];
    steps.tests("tests", &built)?;
    // As on a CPU without a matrix unit. Nothing is compiled for it.
    let reference = [&["--locked", "--workspace", "--features", features][..], &REFERENCE].concat();
    steps.tests_with("reference runs without a unit", &reference, &[(UNIT, "portable")])?;
    steps.tests("doctests", &["--locked", "--workspace", "--doc", "--features", features])?;
    if scope == Scope::Quick {
        return Ok(());
    }
    // It finds what the tests above have built of other people's crates.
    let target = repository::target()?;
    let target = ["--locked", "--target-dir", target.to_str().context("a path in UTF-8")?];
    steps.tests("tests on Burn 0.23", &[&target[..], &BURN_0_23].concat())?;
    sim::run(steps, &built, None, Size::Libraries)
}

fn clippy(steps: &mut Steps, title: &str, selection: &[&str]) -> Result<()> {
    steps.cargo(title, &[&["clippy", "--locked"], selection, &["--", "-D", "warnings"]].concat())
}
