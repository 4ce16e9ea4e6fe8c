//! A small Llama, trained in FP8 from nothing, and written as a published model is.

mod export;
mod shape;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::backend::Autodiff;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul, Recipe, high_precision};
use examples_common::write_json;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::config::Config;
use crate::model::{CacheType, Decoder, Frequencies, LoadOptions, Step, Weights};
pub use shape::Shape;
use text::Text;

/// What is decided before a training.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A text file, or the built-in text.
    pub text: Option<PathBuf>,
    /// Where the model is written; must not be there, or be empty.
    pub out: PathBuf,
    /// The shape of the model.
    pub shape: Shape,
    /// Steps of the optimizer; with none, weights are random, and no loss is computed.
    pub steps: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// The highest learning rate.
    pub rate: f64,
    /// Where weights and the order of sequences start from.
    pub seed: u64,
}

/// Tokens of the tokenizer.
const VOCABULARY: usize = 1024;

/// Steps over which the learning rate rises; it falls to a tenth by a cosine.
const WARMUP: usize = 50;

/// Sequences that a held-out loss is the mean of, at most.
const HELD_OUT: usize = 128;

/// Sequences of tokens, one token longer than what goes in.
struct Batch<B: Backend> {
    inputs: Tensor<B, 2, Int>,
    targets: Tensor<B, 1, Int>,
    size: [usize; 2],
}

impl<B: Backend> Batch<B> {
    fn new(tokens: &[u32], starts: &[usize], context: usize, device: &B::Device) -> Self {
        let ids = |offset: usize| {
            let rows = starts.iter().map(|start| &tokens[start + offset..][..context]);
            rows.flatten().map(|token| i64::from(*token)).collect::<Vec<_>>()
        };
        let size = [starts.len(), context];
        let inputs = Tensor::from_data(TensorData::new(ids(0), size), device);
        let targets = Tensor::from_data(TensorData::new(ids(1), [size[0] * size[1]]), device);
        Self { inputs, targets, size }
    }
}

/// The mean loss of the tokens of a batch, in nats. The head stays in high precision.
fn loss<B: Fp8Matmul>(weights: &Weights<B>, config: &Config, batch: Batch<B>) -> Tensor<B, 1> {
    let [rows, context] = batch.size;
    let device = batch.inputs.device();
    let positions = vec![(0..context).collect::<Vec<_>>()];
    let step = Step {
        turns: Frequencies::new(config).turns(&positions, &device),
        padding: vec![],
        limit: context,
    };
    let hidden = weights.hidden(batch.inputs, &step, None);
    let logits = high_precision(|| weights.logits(hidden));
    let logits = logits.reshape([rows * context, config.vocabulary]);
    CrossEntropyLossConfig::new().init(&device).forward(logits, batch.targets)
}

/// Starts of sequences that are held out, spread over the text.
fn held_out_starts(tokens: usize, context: usize) -> Vec<usize> {
    let all = (tokens - 1) / context;
    let count = all.min(HELD_OUT);
    (0..count).map(|index| index * all / count * context).collect()
}

fn number<B: Backend>(loss: Tensor<B, 1>) -> f64 {
    loss.into_data().iter::<f64>().next().expect("a loss is a number")
}

/// Trains on a backend in FP8, with a scale for each row; writes the model; and tells the held-out loss of what was trained and of what was written.
///
/// `progress` gets the step and the loss of the tokens of it, now and then.
///
/// # Errors
/// Where the text cannot be read or is too short, the training diverges, or the folder cannot be written.
pub fn train<B: Fp8Matmul>(plan: &Plan, mut progress: impl FnMut(usize, f64)) -> Result<Value> {
    let filled = fs::read_dir(&plan.out).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(
        !filled,
        "{} is there already, and not empty: choose another folder",
        plan.out.display()
    );
    ensure!(
        plan.rate.is_finite() && plan.rate > 0.0,
        "the learning rate is {}; it must be over 0",
        plan.rate
    );
    let text = Text::load(plan.text.as_deref(), VOCABULARY)?;
    let json = plan.shape.config();
    let config = Config::parse(&json.to_string())?;
    let Plan { steps, batch, context, rate, seed, .. } = *plan;
    ensure!(
        context <= config.positions,
        "a context of {context} tokens: the model has {} positions",
        config.positions
    );
    ensure!(
        text.seen.len().min(text.held_out.len()) > context,
        "the text has {} tokens and {} that are held out: each part must have more than the context of {context}",
        text.seen.len(),
        text.held_out.len()
    );
    let start = Instant::now();
    let fp8 = Fp8Config::default().with_recipe(Recipe::rowwise());
    let device = B::Device::default();
    let (weights, last) = fp8.scope(|| {
        type Trained<B> = Fp8Backend<Autodiff<B>>;
        Trained::<B>::seed(&device, seed);
        let mut weights = Weights::<Trained<B>>::random(&config, &device);
        let mut optimizer = AdamWConfig::new()
            .with_beta_2(0.95)
            .with_weight_decay(0.1)
            .with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)))
            .init::<Trained<B>, Weights<Trained<B>>>();
        let mut random = StdRng::seed_from_u64(seed);
        let mut last = f64::NAN;
        for step in 0..steps {
            let starts: Vec<usize> =
                (0..batch).map(|_| random.random_range(0..text.seen.len() - context)).collect();
            let batch = Batch::new(&text.seen, &starts, context, &device);
            let loss = loss(&weights, &config, batch);
            if step.is_multiple_of(10) || step + 1 == steps {
                last = number(loss.clone());
                ensure!(
                    last.is_finite(),
                    "the training diverges: the loss of step {step} is {last}"
                );
                progress(step + 1, last);
            }
            let gradients = GradientsParams::from_grads(loss.backward(), &weights);
            weights = optimizer.step(rate * schedule(step, steps), weights, gradients);
        }
        Ok((weights.valid(), last))
    })?;
    let seconds = start.elapsed().as_secs_f64();

    let mut training = json!({
        "text": plan.text.as_ref().map_or("the King James Bible".into(), |text| text.display().to_string()),
        "recipe": "FP8, a scale for each row; head, attention and embedding in f32",
        "steps": steps,
        "batch": batch,
        "context": context,
        "rate": rate,
        "seed": seed,
        "seconds": seconds.round(),
        "tokens": { "seen": text.seen.len(), "held_out": text.held_out.len() },
    });
    export::export(&weights, &json, &text.tokenizer, &plan.out)?;
    if steps > 0 {
        let starts = held_out_starts(text.held_out.len(), context);
        let mean = || -> f64 {
            let losses = starts.chunks(batch).map(|starts| {
                let batch = Batch::new(&text.held_out, starts, context, &device);
                number(loss(&weights, &config, batch)) * starts.len() as f64
            });
            losses.sum::<f64>() / starts.len() as f64
        };
        let written =
            |cache| written::<B>(&plan.out, &text.held_out, &starts, context, cache, &device);
        training["last_loss"] = json!(last);
        training["held_out_loss"] = json!({
            "trained_in_fp8": fp8.scope(mean),
            "trained_in_f32": high_precision(mean),
            "written": written(CacheType::F32)?,
            "written_with_a_bf16_cache": written(CacheType::Bf16)?,
        });
    }
    write_json(&plan.out.join("training.json"), &training)?;
    Ok(training)
}

/// The held-out loss of a folder, as `generate` loads it.
fn written<B: Fp8Matmul>(
    folder: &Path,
    tokens: &[u32],
    starts: &[usize],
    context: usize,
    cache: CacheType,
    device: &B::Device,
) -> Result<f64> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = Config::parse(checkpoint.config())?;
    let options = LoadOptions::default();
    let decoder = Decoder::<B>::load(&checkpoint, config, options, device, |_, _| ())?;
    let mut sum = 0.0;
    for start in starts {
        sum += held_out_loss(&decoder, &tokens[*start..][..context + 1], cache)?;
    }
    Ok(sum / starts.len() as f64)
}

/// The mean loss of the tokens of a text but the first, in nats.
fn held_out_loss<B: Fp8Matmul>(
    decoder: &Decoder<B>,
    tokens: &[u32],
    cache: CacheType,
) -> Result<f64> {
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

/// The part of the highest learning rate at a step.
fn schedule(step: usize, steps: usize) -> f64 {
    let rising = (step + 1) as f64 / WARMUP as f64;
    let fallen = step as f64 / steps as f64;
    let falling = 0.1 + 0.45 * (1.0 + (std::f64::consts::PI * fallen).cos());
    rising.min(1.0) * falling
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use tokenizers::Tokenizer;

    use super::*;

    /// The model that is committed is as good as its training says, and a cache in bf16 hardly changes that.
    #[test]
    fn the_built_in_model_is_what_was_trained() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
        let json = fs::read_to_string(folder.join("training.json")).expect("a training");
        let training: Value = serde_json::from_str(&json).expect("JSON");
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).expect("a tokenizer");
        let text = text::read(None).expect("the text");
        let [seen, held_out] = text::split(&text).expect("two parts");
        assert_eq!([seen.len(), held_out.len()], [29_602, 1_500]);
        let tokens = text::encode(&tokenizer, &held_out).expect("tokens");
        assert_eq!(json!(tokens.len()), training["tokens"]["held_out"]);
        let context = training["context"].as_u64().expect("a number") as usize;
        let starts = held_out_starts(tokens.len(), context);
        let device = Default::default();
        let loss = |cache| written::<Flex>(&folder, &tokens, &starts, context, cache, &device);
        let losses = [("written", CacheType::F32), ("written_with_a_bf16_cache", CacheType::Bf16)];
        let [exact, rounded] = losses.map(|(name, cache)| {
            let found = loss(cache).expect("a loss");
            let expected = training["held_out_loss"][name].as_f64().expect("a number");
            // Codes that are rounded the other way, on another CPU.
            assert!((found - expected).abs() < 1e-3 * expected, "{name}: {found} for {expected}");
            found
        });
        assert!((rounded - exact).abs() < 5e-3 * exact, "{rounded} for {exact}");
        assert_ne!(rounded, exact);
        let size: u64 = fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").metadata().expect("its size").len())
            .sum();
        assert!(size < 2_000_000, "{size} bytes");
    }

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let rates: Vec<f64> = (0..1000).map(|step| schedule(step, 1000)).collect();
        assert!(rates[0] < 0.021 && rates[999] < 0.1001 && rates[999] >= 0.1);
        assert!(rates[..WARMUP].is_sorted() && rates[WARMUP..].is_sorted_by(|a, b| a >= b));
        assert!(rates.iter().copied().fold(0.0, f64::max) > 0.99);
    }
}
