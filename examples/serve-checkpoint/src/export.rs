//! The model written anew, in the form that most servers load.

use std::path::Path;

use anyhow::{Context, Result};
use burn_fp8::checkpoint::{Checkpoint, Export, PlainTensor, QuantizedLinear};
use indicatif::ProgressIterator;

/// Writes a checkpoint as compressed-tensors' `float-quantized`: the codes as they are, with scales in f32. Returns what was written, in words.
///
/// All of it is in memory at once.
pub fn write(checkpoint: &Checkpoint, folder: &Path) -> Result<String> {
    let layers: Vec<(&str, QuantizedLinear)> = checkpoint
        .layers()
        .iter()
        .progress()
        .map(|layer| Ok((&layer.name[..], checkpoint.linear(&layer.name)?)))
        .collect::<Result<_>>()?;
    let others: Vec<PlainTensor> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| Ok(checkpoint.tensor(&tensor.name)?))
        .collect::<Result<_>>()?;
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
        "{} layers and {} other tensors, as compressed-tensors' float-quantized, in {}\n",
        layers.len(),
        others.len(),
        folder.display()
    ))
}
