//! Opens a published FP8 model, says what it is, and times a block of it against the same weights in f32.

mod args;
mod block;
mod contents;
mod timing;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::{Checkpoint, Export, LayerInfo, TensorInfo};
use examples_common::{OnBackend, print};
use indicatif::ProgressIterator;

use args::Args;
use block::Block;

fn main() -> ExitCode {
    examples_common::main(|args: Args| run(&args).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    print(&contents::describe(&args.model, &checkpoint))?;
    if let Some(folder) = &args.export {
        return print(&export(&checkpoint, folder)?);
    }
    match args.list {
        true => Ok(()),
        false => args.backend.run(env!("CARGO_PKG_NAME"), Serve { args, checkpoint: &checkpoint }),
    }
}

/// Writes a model as compressed-tensors does: the codes as they are, with scales in f32, or in E8M0 for MXFP8. Returns what was written, in words.
///
/// All of it is in memory at once.
fn export(checkpoint: &Checkpoint, folder: &Path) -> Result<String> {
    let load = |layer: &LayerInfo| Ok((layer.name.clone(), checkpoint.linear(&layer.name)?));
    let layers = checkpoint.layers().iter().progress().map(load).collect::<Result<Vec<_>>>()?;
    let load = |tensor: &TensorInfo| checkpoint.tensor(&tensor.name);
    let others = checkpoint.tensors().iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer).with_context(|| format!("{name} cannot be exported"))?;
    }
    for tensor in &others {
        let info = tensor.info();
        export.tensor(&info.name, info.dtype, &info.shape, tensor.bytes())?;
    }
    export.write(folder, checkpoint.config())?;
    Ok(format!(
        "{} layers and {} other tensors, as compressed-tensors writes them, in {}\n",
        layers.len(),
        others.len(),
        folder.display()
    ))
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
