//! The ladder of fused FP8 matrix products, after JAX's tutorial of it: each step asks one product for one thing more.

mod args;
mod data;
mod inference;
mod ladder;
mod print;

use std::process::ExitCode;

use anyhow::Result;
use burn_fp8::{Fp8Config, Fp8Matmul};
use clap::Parser;
use examples_common::{OnBackend, end};

use args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    end(args.backend.run(env!("CARGO_PKG_NAME"), &args).map(|()| ExitCode::SUCCESS))
}

impl OnBackend for &Args {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        climb::<B>(self)
    }
}

fn climb<B: Fp8Matmul>(args: &Args) -> Result<()> {
    let device = B::Device::default();
    print::line(&format!(
        "Backend {}. Errors are relative (norm of the difference / norm): first against f64 with the same FP8 operands, then \
         against f64 with\nthe numbers before they were quantized.\n",
        B::name(&device)
    ))?;
    Fp8Config::default().with_execution(args.execution.into()).scope(|| {
        for step in ladder::steps::<B>(args)? {
            print::step(&step)?;
        }
        print::line(&inference::run::<B>(args)?)
    })
}
