//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::recipe::RecipeName;

/// Trains a classifier of handwritten digits in f32 and, three ways, in FP8, and compares them.
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

    /// The backend that all runs use
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// An Fp8Config as JSON for the FP8 runs, whose scaling is that of their recipe [default: dimensions of at least 16]
    #[arg(long, value_name = "FILE.json")]
    pub config: Option<PathBuf>,

    /// Other images to train on: gzipped CSV with the columns of the built-in data
    #[arg(long, value_name = "FILE.csv.gz")]
    pub data: Option<PathBuf>,

    /// The directory that loss.svg and scales.svg are written to; made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "target/digits")]
    pub out: PathBuf,

    /// Print one JSON object instead of the trace and the table
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// The recipes, f32 first, each once.
    pub fn recipes(&self) -> Vec<RecipeName> {
        let f32_first = [RecipeName::F32].into_iter().chain(self.recipes.iter().copied());
        once(f32_first)
    }

    /// The seeds, each once.
    pub fn seeds(&self) -> Vec<u64> {
        once(self.seeds.iter().copied())
    }
}

fn once<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = vec![];
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// A backend. Flex and NdArray run on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Burn's default CPU backend; FP8 quantizes with SIMD
    Flex,
    /// FP8 quantizes with tensor operations, as on any backend without code of its own
    Ndarray,
    /// NVIDIA GPUs, with Burn's Fusion; FP8 runs on tensor cores from compute capability 8.9
    #[cfg(feature = "cuda")]
    Cuda,
}

impl BackendName {
    /// The name that `--backend` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            #[cfg(feature = "cuda")]
            Self::Cuda => "cuda",
        }
    }
}

/// Reads the command line; on `--help`, `--version` or an error returns the exit code of what it printed.
pub fn parse() -> Result<Args, ExitCode> {
    Args::try_parse().map_err(|error| {
        if error.use_stderr() {
            eprintln!("{}", one_line(&error.to_string()));
            ExitCode::from(2)
        } else {
            // Nothing is left to do where the help text has no reader.
            let _ = error.print();
            ExitCode::SUCCESS
        }
    })
}

/// clap's message without its usage paragraphs: the problem and, where there is one, the hint.
fn one_line(message: &str) -> String {
    let paragraphs = message.split("\n\n").filter(|paragraph| {
        !["Usage:", "For more information"]
            .iter()
            .any(|start| paragraph.trim_start().starts_with(start))
    });
    let words = paragraphs.flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ") + " (see --help)"
}
