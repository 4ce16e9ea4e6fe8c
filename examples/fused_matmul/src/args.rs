//! The command line.

use burn_fp8::Execution;
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
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
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// How products run: `native` on tensor cores or a matrix unit, and ends the program at one that cannot; `fake-quantized` in emulation; `auto` natively where they can
    #[arg(long, value_parser = execution(), default_value = "auto")]
    pub execution: Execution,
}

/// Sizes that take a moment, not more: errors are measured against a plain loop in f64.
fn size() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=1024).map(usize::from)
}

fn execution() -> impl TypedValueParser<Value = Execution> {
    PossibleValuesParser::new(["auto", "fake-quantized", "native"]).map(|name| match &name[..] {
        "native" => Execution::Native,
        "fake-quantized" => Execution::FakeQuantized,
        _ => Execution::Auto,
    })
}
