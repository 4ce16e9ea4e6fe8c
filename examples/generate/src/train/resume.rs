//! Where a training of adapters goes on after it was interrupted.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use burn::module::{Module, Param};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Record, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::Fp8Matmul;
use serde_json::{Value, json};

use super::course::{Moments, Reached};
use crate::model::Weights;

/// Written beside the adapters, as one file: it is whole or that of before.
const FILE: &str = "resume.bin";

/// Adapters' matrices, with what names them to an optimizer.
#[derive(Module, Debug)]
struct Matrices<B: Backend> {
    matrices: Vec<Param<Tensor<B, 2>>>,
}

/// Writes where a training is, which was begun with these settings.
pub(super) fn save<B>(folder: &Path, settings: &Value, reached: &Reached<'_, B>) -> Result<()>
where
    B: AutodiffBackend + Fp8Matmul,
{
    let matrices = reached.weights.adapters().into_iter().map(|(_, adapter)| adapter);
    let matrices = matrices.flat_map(|adapter| [adapter.a.clone(), adapter.b.clone()]).collect();
    let matrices = encode::<B, _>(Matrices { matrices }.into_record())?;
    let moments = encode::<B, _>(reached.moments())?;
    let header = json!({ "settings": settings, "done": reached.done, "matrices": matrices.len() });
    let (path, part) = (folder.join(FILE), folder.join("resume.bin.part"));
    let write = || {
        let mut file = fs::File::create(&part)?;
        writeln!(file, "{header}")?;
        file.write_all(&matrices)?;
        file.write_all(&moments)?;
        file.sync_all()?;
        fs::rename(&part, &path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Puts the matrices that were saved into adapters, and gives the steps that are done and the state of the optimizer.
pub(super) fn load<B>(
    folder: &Path,
    settings: &Value,
    weights: &mut Weights<B>,
    device: &B::Device,
) -> Result<(usize, Moments<B>)>
where
    B: AutodiffBackend + Fp8Matmul,
{
    let path = folder.join(FILE);
    let bytes = fs::read(&path).with_context(|| {
        format!("there is nothing to resume in {}: leave out --resume", folder.display())
    })?;
    let damaged = || format!("{} is damaged: leave out --resume to begin anew", path.display());
    let split = bytes.iter().position(|byte| *byte == b'\n').with_context(damaged)?;
    let header: Value = serde_json::from_slice(&bytes[..split]).with_context(damaged)?;
    for (key, now) in settings.as_object().into_iter().flatten() {
        let before = &header["settings"][key];
        ensure!(
            before == now,
            "the training in {} was begun with {key} {before}, not {now}: give the same, or leave out --resume to begin anew",
            folder.display()
        );
    }
    let number = |key: &str| header[key].as_u64().and_then(|x| usize::try_from(x).ok());
    let steps = settings["course"]["steps"].as_u64();
    let done = number("done").filter(|done| Some(*done as u64) < steps).with_context(damaged)?;
    let rest = &bytes[split + 1..];
    let size = number("matrices").filter(|size| *size <= rest.len()).with_context(damaged)?;
    let (matrices, moments) = rest.split_at(size);
    let mut places = weights.adapter_matrices_mut();
    let matrices: MatricesRecord<B> = decode(matrices, device).with_context(damaged)?;
    ensure!(matrices.matrices.len() == places.len(), damaged());
    let own = Matrices { matrices: places.iter().map(|place| (**place).clone()).collect() };
    let shapes: Vec<_> = own.matrices.iter().map(|matrix| matrix.dims()).collect();
    let own = own.load_record(matrices);
    ensure!(own.matrices.iter().map(|matrix| matrix.dims()).eq(shapes), damaged());
    for (place, matrix) in places.iter_mut().zip(own.matrices) {
        **place = matrix;
    }
    Ok((done, decode(moments, device).with_context(damaged)?))
}

/// Removes what a training that has ended left there.
pub(super) fn remove(folder: &Path) -> Result<()> {
    let path = folder.join(FILE);
    match path.exists() {
        true => fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display())),
        false => Ok(()),
    }
}

fn recorder() -> NamedMpkBytesRecorder<FullPrecisionSettings> {
    NamedMpkBytesRecorder::default()
}

fn encode<B: Backend, R: Record<B>>(record: R) -> Result<Vec<u8>> {
    Recorder::<B>::record(&recorder(), record, ()).map_err(|error| anyhow!("{error}"))
}

fn decode<B: Backend, R: Record<B>>(bytes: &[u8], device: &B::Device) -> Result<R> {
    recorder().load(bytes.to_vec(), device).map_err(|error| anyhow!("{error}"))
}
