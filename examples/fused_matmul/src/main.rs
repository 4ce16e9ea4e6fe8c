//! The ladder of fused FP8 matrix products, after JAX's tutorial of it: each step asks one product for one thing more.

mod args;
mod data;
mod inference;
mod ladder;
mod print;

use std::process::ExitCode;

use anyhow::Result;
use burn::backend::{Flex, NdArray};
use burn_fp8::{Fp8Config, Fp8Matmul};

use args::{Args, BackendName};

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let done = match args.backend {
        BackendName::Flex => climb::<Flex>(&args),
        BackendName::Ndarray => climb::<NdArray>(&args),
        #[cfg(feature = "wgpu")]
        BackendName::Wgpu => climb::<burn::backend::Wgpu>(&args),
        #[cfg(feature = "cuda")]
        BackendName::Cuda => {
            anyhow::Context::context(burn_fp8_cublaslt::require_device(0), "--backend cuda")
                .and_then(|()| climb::<burn::backend::Cuda>(&args))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
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
