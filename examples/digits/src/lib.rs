//! Trains the same classifier of handwritten digits in f32 and in FP8: by changing one type, or by replacing its layers.

mod args;
mod data;
mod model;
mod recipe;
mod report;
mod train;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::backend::Autodiff;
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul};
use examples_common::{OnBackend, Origin, print, write_json};

use args::Args;
use data::Digits;
use model::LayerProducts;
use recipe::RecipeName;
use report::{Record, Run};
use train::{Outcome, Plan};

/// The name of the package, and so of the program.
const PROGRAM: &str = env!("CARGO_PKG_NAME");

/// Does what the command line says; the exit code of the program.
pub fn main() -> ExitCode {
    examples_common::main(|args: Args| {
        args.backend.run(PROGRAM, &args)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Trains with each seed and each recipe and reports them all.
impl OnBackend for &Args {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let config = self.config.as_deref().map_or(Ok(Fp8Config::default()), Fp8Config::load)?;
        let (recipes, seeds) = (self.recipes(), self.seeds());
        let configs = recipes.iter().map(|recipe| configure::<B>(*recipe, config));
        let configs = configs.collect::<Result<Vec<_>>>()?;
        let layers = model::layers(self.hidden as usize);
        config.check::<B>(&B::Device::default())?;
        let digits = Digits::load().context("built-in data")?;
        // A wrong folder is told before the training, not after it.
        fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot make the directory {}", self.out.display()))?;
        // Before anything is written: what is written may lie in the repository.
        let origin = Origin::here(PROGRAM, &["--out"]).with_backend(self.backend);

        let mut runs = Vec::new();
        let mut first_step = String::new();
        for &seed in &seeds {
            for (&recipe, config) in recipes.iter().zip(&configs) {
                let expected = model::expected_products(config, train::BATCH, layers);
                let (digits, epochs) = (&digits, self.epochs);
                let plan = Plan { digits, epochs, seed, layers, fp8_layers: None };
                let outcome = train_with::<B>(recipe, config, plan, &expected);
                assert_eq!(
                    outcome.first_step.fp8().count(),
                    expected.iter().map(|layer| layer.products).sum::<usize>(),
                    "a step of {} runs other products in FP8 than the filter takes:\n{}",
                    recipe.as_str(),
                    outcome.first_step
                );
                if recipe != RecipeName::F32 && first_step.is_empty() {
                    first_step = report::first_step(recipe, &outcome.first_step, &expected);
                    print(&first_step)?;
                }
                runs.push(Run::new(recipe, seed, outcome));
            }
        }

        let (epochs, hidden) = (self.epochs, self.hidden);
        let record = Record { origin, epochs, hidden, first_step, runs };
        write_json(&self.out.join("runs.json"), &record)?;
        print(&report::table(&record.runs))
    }
}

/// The configuration of a recipe. One that has gains already is not measured again.
fn configure<B: Fp8Matmul>(recipe: RecipeName, config: Fp8Config) -> Result<Fp8Config> {
    let config = recipe.config(config)?;
    if recipe != RecipeName::Fp8Measured || config.filter.gains.is_some() {
        return Ok(config);
    }
    eprintln!("measuring which products FP8 makes faster here, or reading what was measured …");
    Ok(config.measured::<Fp8Backend<Autodiff<B>>>(&B::Device::default())?)
}

/// One run. What differs between the recipes is all here.
fn train_with<B: Fp8Matmul>(
    recipe: RecipeName,
    config: &Fp8Config,
    plan: Plan,
    expected: &[LayerProducts],
) -> Outcome {
    match recipe {
        RecipeName::F32 => train::train::<Autodiff<B>>(plan),
        // Another type.
        RecipeName::Fp8Current
        | RecipeName::Fp8Measured
        | RecipeName::Fp8Row
        | RecipeName::Mxfp8
        | RecipeName::Fp8Block => config.scope(|| train::train::<Fp8Backend<Autodiff<B>>>(plan)),
        // The same type; the histories of this run's products are kept apart from those of other runs.
        RecipeName::Fp8Delayed => DelayedState::new()
            .scope(|| config.scope(|| train::train::<Fp8Backend<Autodiff<B>>>(plan))),
        // The type of f32, and other layers.
        RecipeName::Fp8Layers => {
            let layers = recipe::layers(config);
            let plan = Plan { fp8_layers: Some((layers, expected)), ..plan };
            config.scope(|| train::train::<Autodiff<B>>(plan))
        }
    }
}
