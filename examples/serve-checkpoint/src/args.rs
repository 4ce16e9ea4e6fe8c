//! The command line.

use std::path::PathBuf;

use clap::Parser;
use examples_common::{BackendName, once};

/// A tiny model of the tests, one layer of a Llama in MXFP8.
const DEFAULT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/burn-fp8-checkpoint/tests/golden/ct_mxfp8");

/// Opens a published FP8 model, prints its layers and formats, and times a block of it against the same weights in f32.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// A folder with config.json and safetensors files, or a file; by default a tiny model of this repository
    #[arg(long, value_name = "PATH", default_value = DEFAULT, hide_default_value = true)]
    pub model: PathBuf,

    /// What to run: a layer by its name, or what comes before `.mlp`; by default the first MLP, else the first layer
    #[arg(long, value_name = "NAME")]
    pub part: Option<String>,

    /// How many tokens go through at once; several, separated by commas
    #[arg(long = "batch", visible_alias = "batches", value_name = "TOKENS", value_delimiter = ',', default_value = "1,8,64", value_parser = clap::value_parser!(u16).range(1..=4096))]
    batches: Vec<u16>,

    /// How long each of them is timed, in milliseconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    pub milliseconds: u16,

    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// Print what the model holds, and end
    #[arg(long, conflicts_with = "export")]
    pub list: bool,

    /// Write the model as compressed-tensors does into a new folder, and end
    #[arg(long, value_name = "FOLDER")]
    pub export: Option<PathBuf>,
}

impl Args {
    /// The batches, each once.
    pub fn batches(&self) -> Vec<usize> {
        once(self.batches.iter().copied().map(usize::from))
    }
}
