//! Training: a model from nothing, in FP8, written as a published one is; adapters beside one that is frozen.

mod course;
mod export;
mod plot;
mod resume;
mod room;
mod shape;
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
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::nn::lora::Adapters;
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul, Recipe, high_precision};
use examples_common::{check_place, write, write_json};
use serde_json::{Value, json};

use crate::config::{Config, open};
use crate::model::{CacheType, Decoder, LoadOptions, Weights};
pub use course::Course;
use course::{Reached, number, starts};
pub use export::{Scheme, republish};
use room::{check_free, check_room, keep};
pub use shape::Shape;
use text::Text;
pub use tune::{Tuning, tune};

/// What is decided before a training.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A text file, or the built-in text.
    pub text: Option<PathBuf>,
    /// Where the model is written; must not be there, or be empty.
    pub out: PathBuf,
    /// The shape of the model.
    pub shape: Shape,
    /// Its steps and rates; without steps, weights are random, and no loss is computed.
    pub course: Course,
    /// Where the losses are drawn, as SVG.
    pub picture: Option<PathBuf>,
}

/// Tokens of the tokenizer.
const VOCABULARY: usize = 1024;

/// Trains on a backend in FP8, with a scale for each row; writes the model; and tells the held-out loss of what was trained and of what was written.
///
/// `progress` gets the step and the loss of the tokens of it, now and then.
///
/// # Errors
/// Where the text cannot be read or is too short, the training diverges, or the folder cannot be written: before the training where that can be
/// found out, and else what was trained is in another folder, which is named.
pub fn train<B: Fp8Matmul>(plan: &Plan, mut progress: impl FnMut(usize, f64)) -> Result<Value> {
    check_free(&plan.out)?;
    check_room(&plan.out, 0)?;
    plan.picture.as_deref().map(check_place).transpose()?;
    let text = Text::load(plan.text.as_deref(), VOCABULARY)?;
    let json = plan.shape.config();
    let config = Config::parse(&json.to_string())?;
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
    let mut training = course.report(&text, seconds);
    let source = plan.text.as_ref().map(|text| text.display().to_string());
    training["text"] = json!(source.unwrap_or("the King James Bible".into()));
    training["recipe"] = json!("FP8, a scale for each row; head, attention and embedding in f32");
    let files = export::files(&text.tokenizer)?;
    keep(&plan.out, |folder| {
        export::export(&weights, &json.to_string(), &files, Scheme::default(), folder)
    })?;
    if course.steps > 0 {
        let mean = || course.mean_loss(&weights, &config, &text.held_out, &device);
        let written =
            |cache| written::<B>(&plan.out, &text.held_out, course.context, cache, &device);
        let in_fp8 = fp8.scope(mean);
        if let Some(picture) = &plan.picture {
            let title = format!("A model trained for {} steps", course.steps);
            write(picture, plot::losses(&title, &losses, &[(course.steps, in_fp8)])?)?;
        }
        training["last_loss"] = json!(last);
        training["held_out_loss"] = json!({
            "trained_in_fp8": in_fp8,
            "trained_in_f32": high_precision(mean),
            "written": written(CacheType::F32)?,
            "written_with_a_bf16_cache": written(CacheType::Bf16)?,
            "written_with_an_fp8_cache": written(CacheType::Fp8)?,
        });
    }
    write_json(&plan.out.join("training.json"), &training)?;
    Ok(training)
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
    check_free(out)?;
    check_room(out, 0)?;
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

/// The held-out loss of a folder, as `generate` loads it.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::backend::Flex;
    use tokenizers::Tokenizer;

    use super::*;

    /// What lies beside the weights of the model that is committed is what the command writes today.
    #[test]
    fn the_built_in_model_is_what_is_written() {
        let out = tempfile::tempdir().expect("a folder");
        let course = Course { steps: 0, batch: 16, context: 128, rate: 3e-3, seed: 0 };
        let out_folder = out.path().join("new");
        let plan = Plan {
            text: None,
            out: out_folder.clone(),
            shape: Shape::Small,
            course,
            picture: None,
        };
        train::<Flex>(&plan, |_, _| ()).expect("written");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
        let files =
            ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"];
        for file in files {
            let read = |folder: &Path| fs::read(folder.join(file)).expect(file);
            assert!(read(&folder) == read(&out_folder), "{file}");
        }
        let size = |folder: &Path| {
            fs::metadata(folder.join("model.safetensors")).expect("it is there").len()
        };
        assert_eq!(size(&folder), size(&out_folder));
    }

    /// The model that is committed is as good as its training says, and a cache in bf16 or FP8 hardly changes that.
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
        let device = Default::default();
        let loss = |cache| written::<Flex>(&folder, &tokens, context, cache, &device);
        let losses = [
            ("written", CacheType::F32),
            ("written_with_a_bf16_cache", CacheType::Bf16),
            ("written_with_an_fp8_cache", CacheType::Fp8),
        ];
        let [exact, bf16, fp8] = losses.map(|(name, cache)| {
            let found = loss(cache).expect("a loss");
            let expected = training["held_out_loss"][name].as_f64().expect("a number");
            // Codes that are rounded the other way, on another CPU.
            assert!((found - expected).abs() < 1e-3 * expected, "{name}: {found} for {expected}");
            found
        });
        for rounded in [bf16, fp8] {
            assert!((rounded - exact).abs() < 5e-3 * exact, "{rounded} for {exact}");
            assert_ne!(rounded, exact);
        }
        let size: u64 = fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").metadata().expect("its size").len())
            .sum();
        assert!(size < 2_000_000, "{size} bytes");
    }
}
