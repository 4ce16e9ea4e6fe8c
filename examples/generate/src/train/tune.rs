//! Adapters for a text, beside a model that stays as it is.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::nn::LoraConfig;
use burn_fp8::nn::lora::save_adapters;
use serde_json::{Value, json};

use super::course::Course;
use super::text::Text;
use crate::config::Config;
use crate::model::{Decoder, LoadOptions};
use crate::tokens::Tokens;

/// What is decided before adapters are trained.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The folder of the model.
    pub model: PathBuf,
    /// A text file.
    pub text: PathBuf,
    /// Where the adapters are written; those that are there are replaced.
    pub out: PathBuf,
    /// Rank, alpha and dropout.
    pub lora: LoraConfig,
    /// The ends of names of layers that get one, such as `q_proj`; all that are quantized where there is none.
    pub layers: Vec<String>,
    /// Steps and rates.
    pub course: Course,
}

/// After so many steps the adapters are written.
const WRITTEN_EVERY: usize = 100;

/// Trains adapters, writes them as PEFT does, now and then and at the end, and tells the held-out loss before and after. `progress` gets the step and the loss of its tokens.
///
/// # Errors
/// Where the model or the text cannot be read, no layer has such a name, the training diverges, or the folder cannot be written.
pub fn tune<B: Fp8Matmul>(plan: &Tuning, mut progress: impl FnMut(usize, f64)) -> Result<Value> {
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
    // Norms and embedding stay as they are, too.
    let mut weights = decoder.into_weights().no_grad();
    let before = course.mean_loss(&weights.valid(), &config, &text.held_out, &device);
    Trained::<B>::seed(&device, course.seed);
    let is_meant = |name: &str| {
        let mut ends = plan.layers.iter();
        plan.layers.is_empty() || ends.any(|end| name.ends_with(&format!(".{end}")) || name == end)
    };
    let adapters = weights.adapt(|name, base| match is_meant(name) {
        true => Ok(Some(plan.lora.init(base.clone()).with_context(|| name.to_owned())?)),
        false => Ok(None),
    })?;
    ensure!(
        adapters > 0,
        "no quantized layer has a name that ends with {}; a model's layers are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj",
        plan.layers.join(" or ")
    );
    let base = plan.model.display().to_string();
    let start = Instant::now();
    let told = |step: usize, loss, weights: &_| {
        progress(step, loss);
        if step % WRITTEN_EVERY == 1 && step > 1 {
            save(plan, &base, weights)?;
        }
        Ok(())
    };
    let (weights, last) = course.fit(weights, &config, &text.seen, &device, told)?;
    let seconds = start.elapsed().as_secs_f64();
    save(plan, &base, &weights)?;
    let weights = weights.valid();
    let after = course.mean_loss(&weights, &config, &text.held_out, &device);
    let trained: usize = weights
        .adapters()
        .iter()
        .map(|(_, adapter)| adapter.a.shape().num_elements() + adapter.b.shape().num_elements())
        .sum();
    let Course { steps, batch, context, rate, seed } = course;
    Ok(json!({
        "model": base,
        "text": plan.text.display().to_string(),
        "adapters": { "layers": adapters, "weights": trained, "rank": plan.lora.rank, "alpha": plan.lora.alpha },
        "base_bytes": base_bytes,
        "steps": steps,
        "batch": batch,
        "context": context,
        "rate": rate,
        "seed": seed,
        "seconds": seconds.round(),
        "tokens": { "seen": text.seen.len(), "held_out": text.held_out.len() },
        "last_loss": last,
        "held_out_loss": { "before": before, "after": after },
    }))
}

fn save<B: Fp8Matmul>(plan: &Tuning, base: &str, weights: &crate::model::Weights<B>) -> Result<()> {
    let adapters = weights.adapters();
    let adapters = adapters.iter().map(|(name, adapter)| (&name[..], *adapter));
    Ok(save_adapters(&plan.out, base, adapters)?)
}
