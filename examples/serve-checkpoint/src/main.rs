//! Opens a published FP8 model, says what it is, and times a block of it against the same weights in f32.

mod args;
mod block;
mod contents;
mod export;
mod timing;

use std::process::ExitCode;

use anyhow::Result;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use examples_common::{OnBackend, end, parse, print};

use args::Args;
use block::Block;

fn main() -> ExitCode {
    match parse::<Args>() {
        Ok(args) => end(run(&args).map(|()| ExitCode::SUCCESS)),
        Err(code) => code,
    }
}

fn run(args: &Args) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    print(&contents::describe(&args.model, &checkpoint))?;
    if let Some(folder) = &args.export {
        return print(&export::write(&checkpoint, folder)?);
    }
    match args.list {
        true => Ok(()),
        false => args.backend.run(env!("CARGO_PKG_NAME"), Serve { args, checkpoint: &checkpoint }),
    }
}

/// What runs on whatever backend.
struct Serve<'a> {
    args: &'a Args,
    checkpoint: &'a Checkpoint,
}

impl OnBackend for Serve<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let device = B::Device::default();
        let block = Block::<B>::load(self.checkpoint, self.args.part.as_deref(), &device)?;
        print(&timing::measure(&block, self.args, &device)?)
    }
}
