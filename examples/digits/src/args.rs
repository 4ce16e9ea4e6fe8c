//! The command line.

use std::path::PathBuf;

use clap::Parser;
use examples_common::{BackendName, once};

use crate::recipe::RecipeName;

/// Trains a classifier of handwritten digits in f32 and, in several ways, in FP8, and compares them.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// How often each run goes through the training images
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub epochs: u32,

    /// Seed of the initial weights and of the order of the images; several, separated by commas, train several times
    #[arg(
        long = "seed",
        visible_alias = "seeds",
        value_name = "SEED",
        value_delimiter = ',',
        default_value = "1"
    )]
    seeds: Vec<u64>,

    /// What to train with; several, separated by commas. f32 is always among them, to compare with
    #[arg(
        long = "recipe",
        visible_alias = "recipes",
        value_name = "RECIPE",
        value_enum,
        value_delimiter = ',',
        default_value = "f32,fp8-current,fp8-delayed,fp8-layers"
    )]
    recipes: Vec<RecipeName>,

    /// The width of the hidden layers, more than the 64 pixels: at 128 a product is so small that FP8 gains nothing
    #[arg(long, value_name = "WIDTH", default_value_t = 128, value_parser = clap::value_parser!(u32).range(65..=8192))]
    pub hidden: u32,

    /// The backend that all runs use
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// An Fp8Config as JSON for the FP8 runs, whose scaling is that of their recipe [default: dimensions of at least 16]
    #[arg(long, value_name = "FILE.json")]
    pub config: Option<PathBuf>,

    /// The directory that runs.json is written to; made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "target/digits")]
    pub out: PathBuf,
}

impl Args {
    /// The recipes, f32 first, each once.
    pub fn recipes(&self) -> Vec<RecipeName> {
        once([RecipeName::F32].into_iter().chain(self.recipes.iter().copied()))
    }

    /// The seeds, each once.
    pub fn seeds(&self) -> Vec<u64> {
        once(self.seeds.iter().copied())
    }
}
