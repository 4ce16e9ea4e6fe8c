//! Where a training goes on after it was interrupted.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Record, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::Fp8Matmul;
use serde_json::{Value, json};

use super::Losses;
use super::course::{Moments, Reached};
use crate::model::Weights;

/// Written as one file: it is whole or that of before.
const FILE: &str = "resume.bin";

/// What is trained, each as a row, with what names it to an optimizer.
#[derive(Module, Debug)]
struct Trained<B: Backend> {
    rows: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Trained<B> {
    fn of(weights: &Weights<B>) -> Self {
        let mut trained = Self { rows: vec![] };
        weights.visit(&mut trained);
        trained
    }

    fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(|row| row.dims()[0]).collect()
    }
}

impl<B: Backend> ModuleVisitor<B> for Trained<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            let row = param.val().detach().reshape([-1]);
            self.rows.push(Param::initialized(param.id, row));
        }
    }
}

/// Puts rows in the place of what is trained.
struct Put<B: Backend>(std::vec::IntoIter<Param<Tensor<B, 1>>>);

impl<B: Backend> ModuleMapper<B> for Put<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        let row = self.0.next().expect("as many as are trained");
        Param::initialized(row.id, row.val().reshape(param.dims()).detach().require_grad())
    }
}

/// Steps that are done, and what they left of the optimizer.
type Before<B> = (usize, Moments<B>);

/// About the bytes of the file: what is trained, and the two moments of AdamW.
pub(super) fn size<B: Backend>(weights: &Weights<B>) -> usize {
    3 * size_of::<f32>() * Trained::of(weights).lengths().iter().sum::<usize>()
}

/// Writes where a training is, which was begun with these settings.
pub(super) fn save<B>(
    folder: &Path,
    settings: &Value,
    losses: &[(usize, f64)],
    reached: &Reached<'_, B>,
) -> Result<()>
where
    B: AutodiffBackend + Fp8Matmul,
{
    let trained = encode::<B, _>(Trained::of(reached.weights).into_record())?;
    let moments = encode::<B, _>(reached.moments())?;
    let header = json!({
        "settings": settings,
        "done": reached.done,
        "losses": losses,
        "trained": trained.len(),
    });
    let (path, part) = (folder.join(FILE), folder.join("resume.bin.part"));
    let write = || {
        fs::create_dir_all(folder)?;
        let mut file = fs::File::create(&part)?;
        writeln!(file, "{header}")?;
        file.write_all(&trained)?;
        file.write_all(&moments)?;
        file.sync_all()?;
        fs::rename(&part, &path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Puts what was saved in the place of what is trained, and gives the steps that are done and the state of the optimizer, and the losses until then.
pub(super) fn load<B>(
    folder: &Path,
    settings: &Value,
    weights: &mut Weights<B>,
    device: &B::Device,
) -> Result<(Before<B>, Losses)>
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
    let size = number("trained").filter(|size| *size <= rest.len()).with_context(damaged)?;
    let (trained, moments) = rest.split_at(size);
    let trained: TrainedRecord<B> = decode(trained, device).with_context(damaged)?;
    let own = Trained::of(weights);
    let lengths = own.lengths();
    ensure!(trained.rows.len() == lengths.len(), damaged());
    let own = own.load_record(trained);
    ensure!(own.lengths() == lengths, damaged());
    *weights = weights.clone().map(&mut Put(own.rows.into_iter()));
    let losses = serde_json::from_value(header["losses"].clone()).with_context(damaged)?;
    Ok(((done, decode(moments, device).with_context(damaged)?), losses))
}

/// Removes what a training that has ended left there, and its folder where that was made for it.
pub(super) fn remove(folder: &Path, is_own: bool) -> Result<()> {
    let path = folder.join(FILE);
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    if is_own {
        // Stays where there is something else in it.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
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
