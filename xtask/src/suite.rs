//! What `cargo xtask test` runs, and with which features.

use anyhow::Result;

use crate::delegate::{self, Mode};
use crate::licences;
use crate::steps::Steps;

/// How much of the suite to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    Full,
    /// Without wgpu and without the type checks: for the minutes between two edits.
    Quick,
}

/// Backends whose tests run on any machine. wgpu runs on Mesa's lavapipe where there is no GPU.
const TESTED: &str = "burn-fp8/flex,burn-fp8/ndarray,burn-fp8/wgpu";
const TESTED_QUICK: &str = "burn-fp8/flex,burn-fp8/ndarray";

/// Backends that need a vendor's library or a server to run, so only their types are checked.
///
/// Few invocations: each set of features compiles its own copy of burn.
const TYPE_CHECKS: &[(&str, &[&str])] = &[
    ("types: no backend", &["-p", "burn-fp8", "--no-default-features"]),
    // LibTorch's bindings pass `cargo check` without the library if xtask's feature asks for their documentation mode.
    (
        "types: all backends, fusion",
        &[
            "-p",
            "burn-fp8",
            "-p",
            "xtask",
            "--features",
            "burn-fp8/flex,burn-fp8/ndarray,burn-fp8/vulkan,burn-fp8/candle,burn-fp8/rocm,burn-fp8/cuda,\
             burn-fp8/router,burn-fp8/remote,burn-fp8/fusion,burn-fp8/tch,xtask/libtorch-check",
        ],
    ),
    // Burn's `distributed` takes Flex and NdArray away, so it stands alone with CUDA.
    (
        "types: cuda, fusion, distributed",
        &["-p", "burn-fp8", "--no-default-features", "--features", "cuda,fusion,distributed"],
    ),
];

/// Runs the suite and stops at the first failure.
pub fn run(steps: &mut Steps, scope: Scope) -> Result<()> {
    let features = match scope {
        Scope::Full => TESTED,
        Scope::Quick => TESTED_QUICK,
    };
    steps.cargo("formatting", &["fmt", "--all", "--check"])?;
    steps.cargo(
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--features", features, "--", "-D", "warnings"],
    )?;
    steps.step("delegation", || delegate::run(Mode::Check))?;
    steps.step("licences", licences::run)?;
    steps.cargo("tests", &["test", "--workspace", "--all-targets", "--features", features])?;
    steps.cargo("doctests", &["test", "--workspace", "--doc", "--features", features])?;
    if scope == Scope::Full {
        for (title, arguments) in TYPE_CHECKS {
            let mut command = vec!["check"];
            command.extend(*arguments);
            steps.cargo(title, &command)?;
        }
    }
    Ok(())
}
