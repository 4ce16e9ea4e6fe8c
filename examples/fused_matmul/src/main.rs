//! The ladder of fused FP8 matrix products, after JAX's tutorial of it: each step asks one product for one thing more.

mod args;
mod data;
mod inference;
mod ladder;

use std::process::ExitCode;

use anyhow::Result;
use burn_fp8::{Fp8Config, Fp8Matmul};
use examples_common::{OnBackend, print};

use args::Args;

fn main() -> ExitCode {
    examples_common::main(|args: Args| {
        args.backend.run(env!("CARGO_PKG_NAME"), &args)?;
        Ok(ExitCode::SUCCESS)
    })
}

impl OnBackend for &Args {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        print(&format!(
            "Backend {}. Errors are relative (norm of the difference / norm): first against f64 with the same FP8 operands, then \
             against f64 with\nthe numbers before they were quantized.\n\n",
            B::name(&B::Device::default())
        ))?;
        Fp8Config::default().with_execution(self.execution).scope(|| {
            for step in ladder::steps::<B>(self)? {
                print(&format!("{step}\n"))?;
            }
            print(&inference::run::<B>(self)?)
        })
    }
}
