//! The command line.

use std::process::ExitCode;

use burn_fp8::Execution;
use clap::{Parser, ValueEnum};

/// Climbs the ladder of fused FP8 matrix products: plain codes, mixed formats, scales, ReLU, bias and GELU, amax, and inference with
/// calibrated static scales. Prints for each step what it does, its error against f64, and what ran it.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// Rows of the input
    #[arg(long, default_value_t = 64, value_parser = size())]
    pub m: usize,

    /// Columns of the weight
    #[arg(long, default_value_t = 96, value_parser = size())]
    pub n: usize,

    /// Columns of the input, summed over
    #[arg(long, default_value_t = 128, value_parser = size())]
    pub k: usize,

    /// Seed of inputs, weights and biases
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// What runs the products
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// How products run; `native` ends the program at one that cannot run on tensor cores
    #[arg(long, value_enum, default_value_t = ExecutionName::Auto)]
    pub execution: ExecutionName,
}

/// Sizes that take a moment, not more: errors are measured against a plain loop in f64.
fn size() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u16).range(1..=1024).map(usize::from)
}

/// A backend of Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Burn's default CPU backend
    Flex,
    /// FP8 in tensor operations, as on any backend without code of its own
    Ndarray,
    /// A GPU, or Mesa's software Vulkan
    #[cfg(feature = "wgpu")]
    Wgpu,
    /// An NVIDIA GPU
    #[cfg(feature = "cuda")]
    Cuda,
}

/// How products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutionName {
    /// On tensor cores where they can
    Auto,
    /// In emulation
    FakeQuantized,
    /// On tensor cores
    Native,
}

impl From<ExecutionName> for Execution {
    fn from(name: ExecutionName) -> Self {
        match name {
            ExecutionName::Auto => Self::Auto,
            ExecutionName::FakeQuantized => Self::FakeQuantized,
            ExecutionName::Native => Self::Native,
        }
    }
}

/// Reads the command line; on `--help`, `--version` or an error returns the exit code of what it printed.
pub fn parse() -> Result<Args, ExitCode> {
    Args::try_parse().map_err(|error| {
        // Nothing is left to do where the text has no reader.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { 2 } else { 0 })
    })
}
