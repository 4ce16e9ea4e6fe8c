//! Trains the same classifier of handwritten digits in f32 and in FP8: by changing one type, or by replacing its layers.

mod args;
mod data;
mod model;
mod plot;
mod recipe;
mod report;
mod scales;
mod train;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::Backend;
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul};
use indicatif::{ProgressBar, ProgressStyle};

use args::{Args, BackendName};
use data::Digits;
use model::LayerProducts;
use recipe::RecipeName;
use report::Run;
use train::{Outcome, Plan};

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // File names and fields may hold line breaks: an error stays one line.
            eprintln!("{}", format!("error: {error:#}").replace(char::is_control, " "));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let config = match &args.config {
        Some(path) => Fp8Config::load(path)?,
        None => Fp8Config::default(),
    };
    match args.backend {
        BackendName::Flex => compare::<Flex>(args, &config),
        BackendName::Ndarray => compare::<NdArray>(args, &config),
        #[cfg(feature = "cuda")]
        BackendName::Cuda => {
            anyhow::Context::context(burn_fp8_cublaslt::require_device(0), "--backend cuda")
                .and_then(|()| compare::<burn::backend::Cuda>(args, &config))
        }
    }
}

/// Trains with each seed and each recipe and reports them all.
fn compare<B: Backend + Fp8Matmul>(args: &Args, config: &Fp8Config) -> Result<()> {
    let (recipes, seeds) = (args.recipes(), args.seeds());
    let configs = recipes.iter().map(|recipe| recipe.config(*config));
    let configs = configs.collect::<Result<Vec<_>>>()?;
    config.check::<B>(&B::Device::default())?;
    let digits = Digits::load(args.data.as_deref())?;
    plot::prepare(&args.out)?;

    let steps = train::steps(&digits) * args.epochs as usize;
    let progress = progress_bar((steps * recipes.len() * seeds.len()) as u64)?;
    let images = digits.train.len().min(train::BATCH);
    let mut runs = Vec::new();
    let mut shown = false;
    for &seed in &seeds {
        for (&recipe, config) in recipes.iter().zip(&configs) {
            progress.set_message(format!("{}, seed {seed}", recipe.as_str()));
            let expected = model::expected_products(config, images);
            let plan = Plan { digits: &digits, epochs: args.epochs, seed, fp8_layers: None };
            let outcome = train_with::<B>(recipe, config, plan, &expected, &progress);
            let run = Run::new(recipe, seed, outcome);
            assert_eq!(
                run.fp8_products_per_step,
                expected.iter().map(|layer| layer.products).sum::<usize>(),
                "a step of {} runs other products in FP8 than the filter takes:\n{}",
                recipe.as_str(),
                run.first_step
            );
            if recipe != RecipeName::F32 && !shown && !args.json {
                progress.suspend(|| print(&report::first_step(&run, &expected)))?;
                shown = true;
            }
            runs.push(run);
        }
    }
    progress.finish_and_clear();

    let loss = plot::loss_curves(&args.out, &runs)?;
    let scales = plot::scales(&args.out, &runs)?;
    match args.json {
        true => print(&report::json(args, &runs)),
        false => print(&format!(
            "{}\nloss curves: {}\nscales over time: {}\n",
            report::table(&runs),
            loss.display(),
            scales.display()
        )),
    }
}

/// One run. What differs between the recipes is all here.
fn train_with<B: Backend + Fp8Matmul>(
    recipe: RecipeName,
    config: &Fp8Config,
    plan: Plan,
    expected: &[LayerProducts],
    progress: &ProgressBar,
) -> Outcome {
    match recipe {
        RecipeName::F32 => train::train::<Autodiff<B>>(plan, progress),
        // Another type.
        RecipeName::Fp8Current => {
            config.scope(|| train::train::<Fp8Backend<Autodiff<B>>>(plan, progress))
        }
        // The same type; the histories of this run's products are kept apart from those of other runs.
        RecipeName::Fp8Delayed => DelayedState::new()
            .scope(|| config.scope(|| train::train::<Fp8Backend<Autodiff<B>>>(plan, progress))),
        // The type of f32, and other layers.
        RecipeName::Fp8Layers => {
            let layers = recipe::layers(config);
            let plan = Plan { fp8_layers: Some((layers, expected)), ..plan };
            config.scope(|| train::train::<Autodiff<B>>(plan, progress))
        }
    }
}

/// A bar on stderr; hidden where stderr is no terminal.
fn progress_bar(steps: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:20} {wide_bar} {pos}/{len} steps, {eta} left")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

/// Not `print!`, which panics where the reader of a pipe has gone: that is no error here.
fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}
