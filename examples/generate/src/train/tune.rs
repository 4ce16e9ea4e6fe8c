//! Adapters for a text, beside a model that stays as it is.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::nn::lora::save_adapters;
use burn_fp8::nn::{LoraConfig, LoraLinear};
use flate2::Crc;
use serde_json::{Value, json};

use super::course::{Course, Reached};
use super::export::{check_free, export, files_of};
use super::resume;
use super::text::Text;
use crate::config::Config;
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
    /// Steps and rates.
    pub course: Course,
    /// After so many steps adapters are written, and what a training needs to go on from there.
    pub save_every: usize,
    /// Whether to go on where a training into the same folder was interrupted.
    pub resume: bool,
}

/// Trains adapters, writes them as PEFT does, now and then and at the end, and tells the held-out loss before and after. `progress` gets the step and the loss of its
/// tokens; an error of it ends the training.
///
/// A training that is resumed ends with the same adapters, bit for bit, as one that was not interrupted.
///
/// # Errors
/// Where the model or the text cannot be read, no layer has such a name, the training diverges, the folder cannot be written, or the training to be resumed is not there or
/// was begun with other settings.
pub fn tune<B: Fp8Matmul>(
    plan: &Tuning,
    mut progress: impl FnMut(usize, f64) -> Result<()>,
) -> Result<Value> {
    match plan.lora {
        None => check_free(&plan.out)?,
        // Before the training, not after.
        Some(_) => fs::create_dir_all(&plan.out)
            .with_context(|| format!("cannot write to {}", plan.out.display()))?,
    }
    let checkpoint = Checkpoint::open(&plan.model)?;
    let config = Config::parse(checkpoint.config())?;
    let tokens = Tokens::load(&plan.model, &config)?;
    let text = Text::of(Some(&plan.text), |_| Ok(tokens.tokenizer().clone()))?;
    let course = plan.course;
    course.check(&text, &config)?;
    let device = B::Device::default();
    type Trained<B> = Autodiff<B>;
    let options = LoadOptions::default();
    let decoder = Decoder::<Trained<B>>::load(&checkpoint, config, options, &device, |_, _| ())?;
    let (config, base_bytes) = (decoder.config().clone(), decoder.bytes());
    let weights = decoder.into_weights();
    let before = course.mean_loss(&weights.valid(), &config, &text.held_out, &device);
    Trained::<B>::seed(&device, course.seed);
    let base = plan.model.display().to_string();
    let settings = json!({
        "course": course,
        "adapters": plan.lora.as_ref().map(|lora| [lora.rank as f64, lora.alpha, lora.dropout]),
        "layers": plan.layers,
        "model": base,
        "text": checksum(&text),
    });
    let mut weights = match &plan.lora {
        // Norms and embedding stay as they are, too.
        Some(lora) => adapted(weights.no_grad(), lora, &plan.layers)?,
        None => weights.dense(),
    };
    let start = Instant::now();
    let from = match plan.resume {
        true => Some(resume::load(&plan.out, &settings, &mut weights, &device)?),
        false => None,
    };
    let mut written = from.as_ref().map_or(0, |(done, _)| *done);
    let told = |reached: Reached<'_, Trained<B>>| {
        if plan.lora.is_some() && reached.done >= written + plan.save_every {
            save(plan, &base, reached.weights)?;
            resume::save(&plan.out, &settings, &reached)?;
            written = reached.done;
        }
        progress(reached.done + 1, reached.loss)
    };
    let (weights, last) = course.fit(weights, &config, &text.seen, &device, from, told)?;
    let seconds = start.elapsed().as_secs_f64();
    let weights = weights.valid();
    let after = course.mean_loss(&weights, &config, &text.held_out, &device);
    let adapters = match &plan.lora {
        Some(LoraConfig { rank, alpha, .. }) => {
            save(plan, &base, &weights)?;
            resume::remove(&plan.out)?;
            let adapters = weights.adapters();
            let numbers = |adapter: &LoraLinear<B>| {
                adapter.a.shape().num_elements() + adapter.b.shape().num_elements()
            };
            let numbers: usize = adapters.iter().map(|(_, adapter)| numbers(adapter)).sum();
            json!({ "layers": adapters.len(), "weights": numbers, "rank": rank, "alpha": alpha })
        }
        None => {
            let files = files_of(&plan.model)?;
            export(&weights, checkpoint.config(), &files, &plan.out)?;
            Value::Null
        }
    };
    let mut report = course.report(&text, seconds);
    report["model"] = json!(base);
    report["text"] = json!(plan.text.display().to_string());
    report["adapters"] = adapters;
    report["base_bytes"] = json!(base_bytes);
    report["last_loss"] = json!(last);
    report["held_out_loss"] = json!({ "before": before, "after": after });
    Ok(report)
}

/// What tells a text from another.
fn checksum(text: &Text) -> u32 {
    let mut sum = Crc::new();
    text.seen.iter().chain(&text.held_out).for_each(|token| sum.update(&token.to_le_bytes()));
    sum.sum()
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

fn save<B: Fp8Matmul>(plan: &Tuning, base: &str, weights: &Weights<B>) -> Result<()> {
    let adapters = weights.adapters();
    let adapters = adapters.iter().map(|(name, adapter)| (&name[..], *adapter));
    Ok(save_adapters(&plan.out, base, adapters)?)
}
