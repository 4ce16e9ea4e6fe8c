//! Trains the same classifier of handwritten digits in f32 and in FP8: by changing one type, or by replacing its layers.

mod args;
mod data;
mod model;
mod plot;
mod recipe;
mod report;
mod scales;
mod train;

use std::process::ExitCode;

use anyhow::Result;
use burn::backend::Autodiff;
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul};
use examples_common::{OnBackend, Origin, end, parse, print, write};
use indicatif::{ProgressBar, ProgressStyle};

use args::Args;
use data::Digits;
use model::LayerProducts;
use recipe::RecipeName;
use report::{Record, Run};
use train::{Outcome, Plan};

/// The name of the package, and so of the program.
const PROGRAM: &str = env!("CARGO_PKG_NAME");

fn main() -> ExitCode {
    match parse::<Args>() {
        Ok(args) => end(run(&args).map(|()| ExitCode::SUCCESS)),
        Err(code) => code,
    }
}

fn run(args: &Args) -> Result<()> {
    let config = match &args.config {
        Some(path) => Fp8Config::load(path)?,
        None => Fp8Config::default(),
    };
    args.backend.run(PROGRAM, Comparison { args, config })
}

/// What is compared, on whatever backend.
struct Comparison<'a> {
    args: &'a Args,
    config: Fp8Config,
}

impl OnBackend for Comparison<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        compare::<B>(self.args, &self.config)
    }
}

/// Trains with each seed and each recipe and reports them all.
fn compare<B: Fp8Matmul>(args: &Args, config: &Fp8Config) -> Result<()> {
    let (recipes, seeds) = (args.recipes(), args.seeds());
    let configs = recipes.iter().map(|recipe| recipe.config(*config));
    let configs = configs.collect::<Result<Vec<_>>>()?;
    config.check::<B>(&B::Device::default())?;
    let digits = Digits::load(args.data.as_deref())?;
    plot::prepare(&args.out)?;
    // Before anything is written: what is written may lie in the repository.
    let origin = Origin::here(PROGRAM, args.backend.as_str());

    let steps = train::steps(&digits) * args.epochs as usize;
    let progress = progress_bar((steps * recipes.len() * seeds.len()) as u64)?;
    let images = digits.train.len().min(train::BATCH);
    let mut runs = Vec::new();
    let mut first_step = String::new();
    for &seed in &seeds {
        for (&recipe, config) in recipes.iter().zip(&configs) {
            progress.set_message(format!("{}, seed {seed}", recipe.as_str()));
            let expected = model::expected_products(config, images);
            let plan = Plan { digits: &digits, epochs: args.epochs, seed, fp8_layers: None };
            let mut outcome = train_with::<B>(recipe, config, plan, &expected, &progress);
            assert_eq!(
                outcome.first_step.fp8().count(),
                expected.iter().map(|layer| layer.products).sum::<usize>(),
                "a step of {} runs other products in FP8 than the filter takes:\n{}",
                recipe.as_str(),
                outcome.first_step
            );
            if recipe != RecipeName::F32 && first_step.is_empty() {
                first_step = report::first_step(recipe, &outcome.first_step, &expected);
                if !args.json {
                    progress.suspend(|| print(&first_step))?;
                }
            }
            if seed != seeds[0] {
                outcome.scales.clear();
            }
            runs.push(Run::new(recipe, seed, outcome));
        }
    }
    progress.finish_and_clear();

    let [loss, scales] = ["loss.svg", "scales.svg"].map(|name| args.out.join(name));
    write(&loss, plot::loss_curves(&runs)?)?;
    write(&scales, plot::scales(&runs)?)?;
    let record = Record { origin, epochs: args.epochs, first_step, runs };
    write(&args.out.join("runs.json"), record.json()?)?;
    let runs = &record.runs;
    match args.json {
        true => print(&report::json(args, runs)),
        false => print(&format!(
            "{}\nloss curves: {}\nscales over time: {}\n",
            report::table(runs),
            loss.display(),
            scales.display()
        )),
    }
}

/// One run. What differs between the recipes is all here.
fn train_with<B: Fp8Matmul>(
    recipe: RecipeName,
    config: &Fp8Config,
    plan: Plan,
    expected: &[LayerProducts],
    progress: &ProgressBar,
) -> Outcome {
    match recipe {
        RecipeName::F32 => train::train::<Autodiff<B>>(plan, progress),
        // Another type.
        RecipeName::Fp8Current | RecipeName::Fp8Row | RecipeName::Mxfp8 | RecipeName::Fp8Block => {
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
