//! Training: a model from nothing, in FP8, written as a published one is; adapters beside one that is frozen; and models written anew.

mod course;
mod export;
mod folder;
mod resume;
mod text;
mod tune;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul, Recipe, high_precision};
use burn_fp8_checkpoint::Checkpoint;
use serde_json::{Value, json};

use crate::config::{Config, open};
use crate::lora::Adapters;
use crate::model::{CacheType, Decoder, LoadOptions, Weights};
use crate::tokens::Tokens;
pub use course::Course;
use course::{Reached, number, starts};
pub use export::{Scheme, republish};
pub use folder::check_out;
use folder::{check_room, keep};
use text::Text;
pub use tune::{Tuning, tune};

/// What is decided before a training.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is learned from.
    pub text: String,
    /// Where the model is written; must not be there, or be empty.
    pub out: PathBuf,
    /// The `config.json` of the model.
    pub config: Value,
    /// Its steps and rates; without steps, weights are random, and no loss is computed.
    pub course: Course,
}

/// What a training gave, beside what it wrote.
#[derive(Clone, Debug)]
pub struct Training {
    /// Settings, time and losses.
    pub report: Value,
    /// Of the tokens that were learned from.
    pub losses: Losses,
    /// Of the held-out text.
    pub held_out: Losses,
}

/// Steps, and the loss after each, in nats a token.
pub type Losses = Vec<(usize, f64)>;

/// Tokens of the tokenizer.
const VOCABULARY: usize = 1024;

/// Trains on a backend in FP8, with a scale for each row; writes the model; and tells the held-out loss of what was trained and of what was written.
///
/// `progress` gets the step and the loss of the tokens of it, now and then.
///
/// # Errors
/// Where the text is too short, the training diverges, or the folder cannot be written: before the training where that can be
/// found out, and else what was trained is in another folder, which is named.
pub fn train<B: Fp8Matmul>(plan: &Plan, mut progress: impl FnMut(usize, f64)) -> Result<Training> {
    check_out(&plan.out)?;
    let text = Text::load(&plan.text, VOCABULARY)?;
    let json = plan.config.to_string();
    let config = Config::parse(&json)?;
    let course = plan.course;
    course.check(&text, &config)?;
    let start = Instant::now();
    let fp8 = Fp8Config::default().with_recipe(Recipe::rowwise());
    let device = B::Device::default();
    let mut losses = vec![];
    let (weights, last) = fp8.scope(|| {
        type Trained<B> = Fp8Backend<Autodiff<B>>;
        Trained::<B>::seed(&device, course.seed);
        let weights = Weights::<Trained<B>>::random(&config, &device);
        // Of the matrices a byte a number, of the rest two.
        check_room(&plan.out, 2 * weights.num_params())?;
        let progress = |reached: Reached<'_, Trained<B>>| {
            losses.push((reached.done + 1, reached.loss));
            progress(reached.done + 1, reached.loss);
            Ok(())
        };
        let (weights, last) = course.fit(weights, &config, &text.seen, &device, None, progress)?;
        anyhow::Ok((weights.valid(), last))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let mut report = course.report(&text, seconds);
    report["recipe"] = json!("FP8, a scale for each row; head, attention and embedding in f32");
    let files = export::files(&text.tokenizer)?;
    keep(&plan.out, |folder| export::export(&weights, &json, &files, Scheme::default(), folder))?;
    let mut held_out = vec![];
    if course.steps > 0 {
        let mean = || course.mean_loss(&weights, &config, &text.held_out, &device);
        let written =
            |cache| written::<B>(&plan.out, &text.held_out, course.context, cache, &device);
        let in_fp8 = fp8.scope(mean);
        held_out.push((course.steps, in_fp8));
        report["last_loss"] = json!(last);
        report["held_out_loss"] = json!({
            "trained_in_fp8": in_fp8,
            "trained_in_f32": high_precision(mean),
            "written": written(CacheType::F32)?,
            "written_with_a_bf16_cache": written(CacheType::Bf16)?,
            "written_with_an_fp8_cache": written(CacheType::Fp8)?,
        });
    }
    Ok(Training { report, losses, held_out })
}

/// Writes a model with its layers' matrices in E4M3, quantized anew with what adapters of PEFT add to them, and the rest in bf16. Without a scheme
/// it is the one that leaves the least noise. Returns the signal-to-noise ratio of each scheme that was tried, in decibels, the one that was taken
/// first. `warn` is told what is odd about the model.
///
/// # Errors
/// Where a folder cannot be read or written, or the adapters are for another model.
pub fn quantize<B: Fp8Matmul>(
    model: &Path,
    adapter: Option<&Path>,
    scheme: Option<Scheme>,
    out: &Path,
    mut warn: impl FnMut(&str),
) -> Result<Vec<(Scheme, f64)>> {
    check_out(out)?;
    let adapters = adapter.map(Adapters::load).transpose()?;
    let checkpoint = open(model)?;
    let config = Config::parse(checkpoint.config())?;
    let (options, device) = (LoadOptions::default(), B::Device::default());
    let mut decoder = Decoder::<B>::load(&checkpoint, config, options, &device, |_, _| ())?;
    // That nothing is in FP8 yet is why it is quantized.
    let of_files = checkpoint.warnings().iter().filter(|_| !checkpoint.layers().is_empty());
    of_files.chain(decoder.warnings()).for_each(|warning| warn(warning));
    if let Some(adapters) = &adapters {
        decoder.adapt(adapters)?;
    }
    let weights = decoder.into_weights().dense();
    let (scheme, ranked) = match scheme {
        Some(scheme) => (scheme, vec![]),
        None => {
            let ranked = export::ranked(&weights)?;
            (ranked[0].0, ranked)
        }
    };
    let files = export::files_of(model)?;
    export::export(&weights, checkpoint.config(), &files, scheme, out)?;
    Ok(ranked)
}

/// The mean loss of the tokens of a text that a training holds out, in nats, by a model as it is loaded; and how many tokens that text has.
///
/// # Errors
/// Where the model cannot be read, or the text is too short.
pub fn held_out_loss<B: Fp8Matmul>(
    model: &Path,
    text: &str,
    context: usize,
    cache: CacheType,
) -> Result<(f64, usize)> {
    let config = Config::parse(open(model)?.config())?;
    let tokens = Tokens::load(model, &config)?;
    let text = Text::of(text, |_| Ok(tokens.tokenizer().clone()))?;
    let loss = written::<B>(model, &text.held_out, context, cache, &B::Device::default())?;
    Ok((loss, text.held_out.len()))
}

/// The held-out loss of a folder, as it is loaded.
fn written<B: Fp8Matmul>(
    folder: &Path,
    tokens: &[u32],
    context: usize,
    cache: CacheType,
    device: &B::Device,
) -> Result<f64> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = Config::parse(checkpoint.config())?;
    let options = LoadOptions::default();
    let decoder = Decoder::<B>::load(&checkpoint, config, options, device, |_, _| ())?;
    let starts = starts(tokens.len(), context);
    let mut sum = 0.0;
    for start in &starts {
        sum += mean_loss(&decoder, &tokens[*start..][..context + 1], cache)?;
    }
    Ok(sum / starts.len() as f64)
}

/// The mean loss of the tokens of a text but the first, in nats.
fn mean_loss<B: Fp8Matmul>(decoder: &Decoder<B>, tokens: &[u32], cache: CacheType) -> Result<f64> {
    let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let mut cache = decoder.cache(cache, vec![0]);
    let logits = decoder.forward(&[inputs.to_vec()], &mut cache, false)?;
    let targets: Vec<i64> = targets.iter().map(|token| i64::from(*token)).collect();
    let targets = TensorData::new(targets, [inputs.len()]);
    let targets = Tensor::<B, 1, Int>::from_data(targets, decoder.device());
    let logits = logits.reshape([inputs.len(), decoder.config().vocabulary]);
    let loss = CrossEntropyLossConfig::new().init(decoder.device()).forward(logits, targets);
    Ok(number(loss))
}
