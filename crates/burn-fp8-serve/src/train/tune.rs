//! Adapters for a text, beside a model that stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use crc32fast::Hasher;
use serde_json::{Value, json};

use super::course::{Course, Reached};
use super::export::{Scheme, export, files_of};
use super::folder::{check_free, check_room, keep};
use super::text::Text;
use super::{Training, resume};
use crate::config::{Config, open};
use crate::lora::{LoraConfig, LoraLinear, save_adapters};
use crate::model::{Decoder, LoadOptions, Weights};
use crate::tokens::Tokens;

/// What is decided before adapters are trained.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The folder of the model.
    pub model: PathBuf,
    /// A text file.
    pub text: PathBuf,
    /// Where the adapters are written; those that are there are replaced. A model is written to a new folder.
    pub out: PathBuf,
    /// Rank, alpha and dropout; without them all weights are trained, in f32, and a model is written instead.
    pub lora: Option<LoraConfig>,
    /// The ends of names of layers that get one, such as `q_proj`; all that are quantized where there is none.
    pub layers: Vec<String>,
    /// The ends of names of modules that are not in FP8 and are trained whole, beside adapters, such as `embed_tokens` and `norm`.
    pub whole: Vec<String>,
    /// Steps and rates.
    pub course: Course,
    /// After so many steps is written what a training needs to go on from there, and adapters.
    pub save_every: usize,
    /// Whether to go on where a training for the same folder was interrupted.
    pub resume: bool,
}

/// Trains adapters, writes them as PEFT does, now and then and at the end, and tells the held-out loss before and after. `progress` gets the step and the loss of its
/// tokens; an error of it ends the training. `warn` is told what is odd about the model.
///
/// A training that is resumed ends with the same adapters, bit for bit, as one that was not interrupted.
///
/// # Errors
/// Where the model or the text cannot be read, no layer has such a name, the training diverges, the folder cannot be written, or the training to be resumed is not there or
/// was begun with other settings. What was trained and cannot be written is in another folder, which the error names.
pub fn tune<B: Fp8Matmul>(
    plan: &Tuning,
    mut warn: impl FnMut(&str),
    mut progress: impl FnMut(usize, f64) -> Result<()>,
) -> Result<Training> {
    if plan.lora.is_none() {
        check_free(&plan.out)?;
    }
    let progress_at = plan.progress();
    if !plan.resume {
        check_room(&progress_at, 0)?;
    }
    let checkpoint = open(&plan.model)?;
    let mut names = checkpoint.layers().iter().map(|layer| &layer.name);
    ensure!(
        plan.lora.is_none() || names.any(|name| name.starts_with("model.layers.")),
        "{} has no layer in FP8, beside which adapters learn: quantize it first, with `generate quantize {0} --out FOLDER`, or train all of its weights, with --full",
        plan.model.display()
    );
    let config = Config::parse(checkpoint.config())?;
    let tokens = Tokens::load(&plan.model, &config)?;
    let text = fs::read_to_string(&plan.text);
    let text = text.with_context(|| format!("cannot read {}", plan.text.display()))?;
    let text = Text::of(&text, |_| Ok(tokens.tokenizer().clone()))?;
    let course = plan.course;
    course.check(&text, &config)?;
    let device = B::Device::default();
    type Trained<B> = Autodiff<B>;
    let options = LoadOptions::default();
    let decoder = Decoder::<Trained<B>>::load(&checkpoint, config, options, &device, |_, _| ())?;
    checkpoint.warnings().iter().chain(decoder.warnings()).for_each(|warning| warn(warning));
    let (config, base_bytes) = (decoder.config().clone(), decoder.bytes());
    let weights = decoder.into_weights();
    let before = course.mean_loss(&weights.valid(), &config, &text.held_out, &device);
    Trained::<B>::seed(&device, course.seed);
    let base = plan.model.display().to_string();
    let settings = json!({
        "course": course,
        "adapters": plan.lora.as_ref().map(|lora| [lora.rank as f64, lora.alpha, lora.dropout]),
        "layers": plan.layers,
        "whole": plan.whole,
        "model": base,
        "text": checksum(&text),
    });
    let mut weights = match &plan.lora {
        // Norms and embedding stay as they are, too, but for those that are trained whole.
        Some(lora) => {
            let mut weights = adapted(weights.no_grad(), lora, &plan.layers)?;
            train_whole(&mut weights, &plan.whole)?;
            weights
        }
        None => weights.dense(),
    };
    if !plan.resume {
        check_room(&progress_at, resume::size(&weights))?;
    }
    let start = Instant::now();
    let from = match plan.resume {
        true => Some(resume::load(&progress_at, &settings, &mut weights, &device)?),
        false => None,
    };
    let (from, mut losses) = from.map_or((None, vec![]), |(from, losses)| (Some(from), losses));
    let mut written = from.as_ref().map_or(0, |(done, _)| *done);
    let told = |reached: Reached<'_, Trained<B>>| {
        if reached.done >= written + plan.save_every {
            if plan.lora.is_some() {
                keep(&plan.out, |folder| save(plan, &base, reached.weights, folder))?;
            }
            keep(&progress_at, |folder| resume::save(folder, &settings, &losses, &reached))?;
            written = reached.done;
        }
        losses.push((reached.done + 1, reached.loss));
        progress(reached.done + 1, reached.loss)
    };
    let (weights, last) = course.fit(weights, &config, &text.seen, &device, from, told)?;
    let seconds = start.elapsed().as_secs_f64();
    let weights = weights.valid();
    let after = course.mean_loss(&weights, &config, &text.held_out, &device);
    let adapters = match &plan.lora {
        Some(LoraConfig { rank, alpha, .. }) => {
            keep(&plan.out, |folder| save(plan, &base, &weights, folder))?;
            let adapters = weights.adapters();
            let numbers = |adapter: &LoraLinear<B>| {
                adapter.a.shape().num_elements() + adapter.b.shape().num_elements()
            };
            let numbers: usize = adapters.iter().map(|(_, adapter)| numbers(adapter)).sum();
            json!({ "layers": adapters.len(), "weights": numbers, "rank": rank, "alpha": alpha })
        }
        None => {
            let files = files_of(&plan.model)?;
            keep(&plan.out, |folder| {
                export(&weights, checkpoint.config(), &files, Scheme::default(), folder)
            })?;
            Value::Null
        }
    };
    resume::remove(&progress_at, plan.lora.is_none())?;
    let mut report = course.report(&text, seconds);
    report["model"] = json!(base);
    report["text"] = json!(plan.text.display().to_string());
    report["adapters"] = adapters;
    report["base_bytes"] = json!(base_bytes);
    report["last_loss"] = json!(last);
    report["held_out_loss"] = json!({ "before": before, "after": after });
    Ok(Training { report, losses, held_out: vec![(0, before), (course.steps, after)] })
}

impl Tuning {
    /// Where it writes what it needs to go on: with adapters, or beside the folder of a model, which is written at the end.
    fn progress(&self) -> PathBuf {
        match (&self.lora, self.out.file_name()) {
            (None, Some(name)) => {
                let mut name = name.to_owned();
                name.push(".training");
                self.out.with_file_name(name)
            }
            _ => self.out.clone(),
        }
    }
}

/// What tells a text from another.
fn checksum(text: &Text) -> u32 {
    let mut sum = Hasher::new();
    text.seen.iter().chain(&text.held_out).for_each(|token| sum.update(&token.to_le_bytes()));
    sum.finalize()
}

/// Adapters beside all quantized layers, or those whose names have one of these ends.
fn adapted<B: Fp8Matmul>(
    mut weights: Weights<B>,
    lora: &LoraConfig,
    ends: &[String],
) -> Result<Weights<B>> {
    let is_meant = |name: &str| {
        let mut ends = ends.iter().map(|end| format!(".{}", end.trim_start_matches('.')));
        ends.len() == 0 || ends.any(|end| name.ends_with(&end))
    };
    let adapters = weights.adapt(|name, base| match is_meant(name) {
        true => Ok(Some(lora.init(base.clone()).with_context(|| name.to_owned())?)),
        false => Ok(None),
    })?;
    ensure!(
        adapters > 0,
        "no quantized layer has a name that ends with {}; a model's layers are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj",
        ends.join(" or ")
    );
    Ok(weights)
}

/// Whether a module's name has one of these ends.
fn is_meant(module: &str, ends: &[String]) -> bool {
    ends.iter().any(|end| module.ends_with(&end[..]))
}

/// Makes these modules such as are trained.
fn train_whole<B: Fp8Matmul>(weights: &mut Weights<B>, ends: &[String]) -> Result<()> {
    let (matrices, norms) = weights.whole_mut();
    let names = matrices.iter().map(|(name, _)| name).chain(norms.iter().map(|(name, _)| name));
    let names: Vec<String> = names.cloned().collect();
    if let Some(end) = ends.iter().find(|end| !names.iter().any(|name| name.ends_with(&end[..]))) {
        bail!(
            "nothing that is not in FP8 has a name that ends with {end}; there are {}",
            names.join(", ")
        );
    }
    for (_, matrix) in matrices.into_iter().filter(|(name, _)| is_meant(name, ends)) {
        matrix.train();
    }
    for (_, norm) in norms.into_iter().filter(|(name, _)| is_meant(name, ends)) {
        norm.gamma = norm.gamma.clone().set_require_grad(true);
    }
    Ok(())
}

fn save<B: Fp8Matmul>(
    plan: &Tuning,
    base: &str,
    weights: &Weights<B>,
    folder: &Path,
) -> Result<()> {
    let mut whole = vec![];
    let (mut own, has_head) = (weights.clone(), weights.head.is_some());
    let (matrices, norms) = own.whole_mut();
    for (name, matrix) in matrices.into_iter().filter(|(name, _)| is_meant(name, &plan.whole)) {
        let data = matrix.weight().into_data();
        // PEFT's copy of an embedding that is the head, too, would leave the head as it was.
        if !has_head {
            whole.push(("lm_head.weight".to_owned(), data.clone()));
        }
        whole.push((format!("{name}.weight"), data));
    }
    for (name, norm) in norms.into_iter().filter(|(name, _)| is_meant(name, &plan.whole)) {
        whole.push((format!("{name}.weight"), norm.gamma.val().into_data()));
    }
    let adapters = weights.adapters();
    let adapters = adapters.iter().map(|(name, adapter)| (&name[..], *adapter));
    Ok(save_adapters(folder, base, adapters, whole)?)
}
