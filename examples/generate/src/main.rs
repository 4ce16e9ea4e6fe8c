//! Loads a published FP8 model and writes what comes next; trains, quantizes, inspects and exports one.

mod args;
mod inspect;
mod plot;
mod shape;
mod talk;

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use burn::backend::Flex;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8_serve::lora::{Adapters, LoraConfig};
use burn_fp8_serve::train::{
    Plan, Scheme, Training, Tuning, check_out, quantize, republish, train, tune,
};
use burn_fp8_serve::{
    Chat, Config, Decoder, Defaults, LoadOptions, Options, Sampling, Tokens, open,
};
use clap::ValueEnum;
use examples_common::{OnBackend, check_place, print, write, write_json};
use flate2::read::GzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use args::{Args, Export, Merge, Quantize, Task, Train, Tune, Write};
use talk::Talk;

fn main() -> ExitCode {
    examples_common::main(|args: Args| {
        match args.task {
            Some(Task::Train(train)) => {
                train.course.backend.run(env!("CARGO_PKG_NAME"), FromNothing(&train))?;
            }
            Some(Task::Tune(tune)) => {
                tune.course.backend.run(env!("CARGO_PKG_NAME"), Adapting(&tune))?;
            }
            Some(Task::Merge(Merge { model, adapter, out })) => {
                quantize::<Flex>(&model, Some(&adapter), Some(Scheme::default()), &out, warn)?;
                print(&format!("{} is the model with its adapters\n", out.display()))?;
            }
            Some(Task::Quantize(Quantize { model, scheme, out })) => {
                let ranked = quantize::<Flex>(&model, None, scheme, &out, warn)?;
                for (scheme, ratio) in &ranked {
                    let scheme = scheme.to_possible_value().expect("a scheme has a name");
                    print(&format!("{}: {ratio:.2} dB of signal over noise\n", scheme.get_name()))?;
                }
                print(&format!("{} is the model in FP8\n", out.display()))?;
            }
            Some(Task::Inspect(args)) => inspect::inspect(&args)?,
            Some(Task::Export(Export { model, out })) => {
                let layers = republish(&model, &out, warn)?;
                let out = out.display();
                print(&format!(
                    "{out} is the model as compressed-tensors writes it, {layers} layers in FP8\n"
                ))?;
            }
            // On a thread of the pool: products that come from elsewhere wait for one of its threads to wake up, each of them.
            None => rayon::scope(|_| continued(args.write))?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn warn(warning: &str) {
    eprintln!("warning: {warning}");
}

/// What the built-in model goes on with, if nothing else is asked for.
const PROMPT: &str = "In the beginning";

fn continued(mut args: Write) -> Result<()> {
    if args.prompt.is_empty() && !args.chat {
        if !args.is_built_in() {
            bail!(
                "there is nothing to do: give --prompt TEXT, --prompt - for standard input, or --chat"
            );
        }
        args.prompt.push(PROMPT.into());
    }
    if args.chat && args.prompt.len() > 1 {
        bail!("a conversation has one beginning: give --prompt once, or leave out --chat");
    }
    for prompt in args.prompt.iter_mut().filter(|prompt| *prompt == "-") {
        prompt.clear();
        io::stdin().read_to_string(prompt).context("cannot read standard input")?;
    }
    let checkpoint = open(&args.model)?;
    let config = Config::parse(checkpoint.config())?;
    // All that may be wrong with the folder, before weights are read.
    let model = &args.model;
    let tokens = Tokens::load(model, &config)?;
    let chat = match args.chat {
        true => {
            let none = "has no chat template: the model continues texts; leave out --chat";
            Some(Chat::load(model)?.with_context(|| format!("{} {none}", model.display()))?)
        }
        false => None,
    };
    let options = options(&args, &config)?;
    let adapters = args.adapter.as_ref().map(Adapters::load).transpose()?;
    checkpoint.warnings().iter().for_each(|warning| warn(warning));
    let checkpoint = &checkpoint;
    let serve = Serve { args: &args, checkpoint, config, tokens, chat, adapters, options };
    args.backend.run(env!("CARGO_PKG_NAME"), serve)
}

/// New tokens, where neither the command line nor the model's folder says how many.
const TOKENS: usize = 256;

/// What the command line says, and where it is silent `generation_config.json`.
fn options(args: &Write, config: &Config) -> Result<Options> {
    let ignored = |key: &str| {
        eprintln!("warning: generation_config.json: {key} is not known here, and ignored")
    };
    let Defaults { sampling: file, ends, tokens, at_least, length } =
        Defaults::load(&args.model, ignored)?;
    let sampling = Sampling {
        temperature: if args.greedy { 0.0 } else { args.temperature.unwrap_or(file.temperature) },
        top_k: args.top_k.unwrap_or(file.top_k),
        top_p: args.top_p.unwrap_or(file.top_p),
        min_p: args.min_p.unwrap_or(file.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(file.repetition_penalty),
    };
    sampling.check()?;
    let ends = match (args.ignore_end, ends.is_empty()) {
        (true, _) => vec![],
        (false, true) => config.ends.clone(),
        (false, false) => ends,
    };
    // A number of new tokens comes before one of all, as in transformers.
    let tokens = args.tokens.map(|tokens| tokens as usize).or(tokens);
    let length = length.filter(|_| tokens.is_none());
    let otherwise = if length.is_some() { usize::MAX } else { TOKENS };
    Ok(Options {
        sampling,
        seed: args.seed,
        tokens: tokens.unwrap_or(otherwise),
        at_least,
        length,
        piece: args.piece as usize,
        cache: args.cache,
        ends,
    })
}

/// The King James Bible, in the public domain.
const BIBLE: &[u8] = include_bytes!("../../char-lm/data/kjv.txt.gz");

/// A text file, or the built-in text.
fn text_of(file: Option<&Path>) -> Result<String> {
    let Some(file) = file else {
        let mut text = String::new();
        GzDecoder::new(BIBLE).read_to_string(&mut text).context("char-lm/data/kjv.txt.gz")?;
        return Ok(text);
    };
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Prints what a training gave, and draws its losses where they are asked for.
fn report(training: &Training, report: &Value, picture: Option<&Path>, title: &str) -> Result<()> {
    let Training { losses, held_out, .. } = training;
    if let Some(picture) = picture.filter(|_| !held_out.is_empty()) {
        write(picture, plot::losses(title, losses, held_out)?)?;
    }
    print(&format!("{report:#}\n"))
}

/// A training on whatever backend.
struct FromNothing<'a>(&'a Train);

impl OnBackend for FromNothing<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let Train { text, out, shape, steps, course, picture } = self.0;
        check_out(out)?;
        picture.as_deref().map(check_place).transpose()?;
        let (course, config) = (course.course(*steps), shape.config());
        let source = text.as_ref().map(|text| text.display().to_string());
        let plan = Plan { text: text_of(text.as_deref())?, out: out.clone(), config, course };
        let bar = bar(*steps)?;
        let training = train::<B>(&plan, |step, loss| told(&bar, step, loss))?;
        bar.finish_and_clear();
        let mut what = training.report.clone();
        what["text"] = json!(source.unwrap_or("the King James Bible".into()));
        write_json(&out.join("training.json"), &what)?;
        let title = format!("A model trained for {steps} steps");
        report(&training, &what, picture.as_deref(), &title)
    }
}

/// Adapters, trained on whatever backend.
struct Adapting<'a>(&'a Tune);

impl OnBackend for Adapting<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let Tune { model, text, out, full, rank, alpha, dropout, layers, whole, .. } = self.0;
        let Tune { steps, save_every, resume, picture, course, .. } = self.0;
        picture.as_deref().map(check_place).transpose()?;
        let lora = LoraConfig::new(*rank).with_alpha(*alpha).with_dropout(*dropout);
        let plan = Tuning {
            model: model.clone(),
            text: text.clone(),
            out: out.clone(),
            lora: (!full).then_some(lora),
            layers: layers.clone(),
            whole: whole.clone(),
            course: course.course(*steps),
            save_every: *save_every as usize,
            resume: *resume,
        };
        let bar = bar(*steps)?;
        let training = tune::<B>(&plan, warn, |step, loss| {
            told(&bar, step, loss);
            Ok(())
        })?;
        bar.finish_and_clear();
        let what = if *full { "All weights" } else { "Adapters" };
        let title = format!("{what} trained for {steps} steps");
        report(&training, &training.report, picture.as_deref(), &title)
    }
}

/// How far a training has come. Hidden where stderr is no terminal.
fn bar(steps: u32) -> Result<ProgressBar> {
    let style = "training {bar:40} step {pos}/{len}, loss {msg}, {eta} left";
    Ok(ProgressBar::new(u64::from(steps)).with_style(ProgressStyle::with_template(style)?))
}

/// Tells a step, and now and then where there is no bar.
fn told(bar: &ProgressBar, step: usize, loss: f64) {
    bar.set_position(step as u64);
    bar.set_message(format!("{loss:.3}"));
    if bar.is_hidden() && step % 100 == 1 {
        eprintln!("step {step}: loss {loss:.3}");
    }
}

/// What runs on whatever backend.
struct Serve<'a> {
    args: &'a Write,
    checkpoint: &'a Checkpoint,
    config: Config,
    tokens: Tokens,
    chat: Option<Chat>,
    adapters: Option<Adapters>,
    options: Options,
}

impl OnBackend for Serve<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let Self { args, checkpoint, config, tokens, chat, adapters, options } = self;
        let start = Instant::now();
        let style = ProgressStyle::with_template("loading {bar:40} {pos}/{len}")?;
        // Hidden where stderr is no terminal.
        let bar = ProgressBar::new(config.layers() as u64 + 2).with_style(style);
        let load = LoadOptions { inputs: args.activations, head: args.head };
        let device = B::Device::default();
        let progress = |done, _| bar.set_position(done as u64);
        let mut decoder = Decoder::<B>::load(checkpoint, config, load, &device, progress)?;
        if let Some(adapters) = &adapters {
            decoder.adapt(adapters)?;
        }
        bar.finish_and_clear();
        decoder.warnings().iter().for_each(|warning| warn(warning));
        eprintln!(
            "{}: {} layers, {:.1} MB of weights on {}, loaded in {:.1} s",
            checkpoint.format(),
            decoder.config().layers(),
            decoder.bytes() as f64 / 1e6,
            B::name(&device),
            start.elapsed().as_secs_f64()
        );
        Talk::new(&decoder, &tokens, options, args)?.run(chat.as_ref())
    }
}
