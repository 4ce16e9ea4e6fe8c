//! The command line.

use burn_fp8::Execution;
use clap::{Parser, ValueEnum};
use examples_common::BackendName;

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
    #[arg(long, value_parser = BackendName::built(), default_value = "flex")]
    pub backend: BackendName,

    /// How products run; `native` ends the program at one that cannot run on tensor cores or a matrix unit
    #[arg(long, value_enum, default_value_t = ExecutionName::Auto)]
    pub execution: ExecutionName,
}

/// Sizes that take a moment, not more: errors are measured against a plain loop in f64.
fn size() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u16).range(1..=1024).map(usize::from)
}

/// How products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutionName {
    /// On tensor cores or a matrix unit where they can
    Auto,
    /// In emulation
    FakeQuantized,
    /// On tensor cores or a matrix unit
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
