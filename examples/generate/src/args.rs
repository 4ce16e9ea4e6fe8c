//! The command line.

use std::path::PathBuf;

use burn_fp8_serve::train::{Course, Scheme};
use burn_fp8_serve::{CacheType, Head, Inputs};
use clap::{Parser, Subcommand};
use examples_common::{BackendName, once};

use crate::shape::Shape;

/// A small Llama of this repository, which `generate train` made.
const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model");

/// Loads a published FP8 model and writes what comes next: Llama, Mistral, Qwen2, Qwen3.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub task: Option<Task>,

    #[command(flatten)]
    pub write: Write,
}

/// What it does instead of writing.
#[derive(Subcommand, Debug)]
pub enum Task {
    /// Trains a small Llama in FP8, from nothing, and writes it as a published model is
    Train(Train),
    /// Trains adapters for a text (LoRA), beside a model that stays in FP8
    Tune(Tune),
    /// Writes a model with what adapters add to it, quantized anew
    Merge(Merge),
    /// Writes a model of any type in FP8
    Quantize(Quantize),
    /// Prints what a model of any family holds, and times a block of it against the same weights in f32
    Inspect(Inspect),
    /// Writes a quantized model of any family as compressed-tensors does, its codes as they are
    Export(Export),
}

/// How a model is trained.
#[derive(clap::Args, Debug)]
pub struct Train {
    /// A text file; by default the King James Bible
    pub text: Option<PathBuf>,

    /// A new folder for the model
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,

    /// The shape of the model
    #[arg(long, value_enum, default_value_t)]
    pub shape: Shape,

    /// Steps of the optimizer; with 0, weights are random, for measuring speed
    #[arg(long, default_value_t = 1500)]
    pub steps: u32,

    /// Draw the losses
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    #[command(flatten)]
    pub course: Learning,
}

/// How adapters are trained.
#[derive(clap::Args, Debug)]
pub struct Tune {
    /// The folder of a model with quantized layers
    pub model: PathBuf,

    /// A text file
    pub text: PathBuf,

    /// A folder for the adapters, as PEFT has them, or with --full a new one for the model
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,

    /// Train all weights, in f32, and write a model, quantized anew
    #[arg(long, conflicts_with_all = ["rank", "alpha", "dropout", "layers", "whole"])]
    pub full: bool,

    /// The rank of adapters
    #[arg(long, default_value_t = 8)]
    pub rank: usize,

    /// What adapters add is multiplied by this over the rank
    #[arg(long, default_value_t = 16.0)]
    pub alpha: f64,

    /// The probability that an input of an adapter becomes 0 in training
    #[arg(long, default_value_t = 0.0)]
    pub dropout: f64,

    /// Layers that get an adapter, by the ends of their names: q_proj,v_proj; by default all that are quantized
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub layers: Vec<String>,

    /// What is not in FP8 and is trained whole beside adapters, by the ends of names: embed_tokens,norm; PEFT's modules_to_save
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub whole: Vec<String>,

    /// Steps of the optimizer
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,

    /// After so many steps, rounded up to tens, is written what --resume needs, and adapters
    #[arg(long, value_name = "STEPS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub save_every: u32,

    /// Go on where a training for the same folder was interrupted; all else must be as it was
    #[arg(long)]
    pub resume: bool,

    /// Draw the losses
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    #[command(flatten)]
    pub course: Learning,
}

/// What is quantized.
#[derive(clap::Args, Debug)]
pub struct Quantize {
    /// The folder of a model
    pub model: PathBuf,

    /// What shares a scale; by default each way is tried, and the one taken that leaves the least noise
    #[arg(long, value_enum)]
    pub scheme: Option<Scheme>,

    /// A new folder for the model
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

/// What is put together.
#[derive(clap::Args, Debug)]
pub struct Merge {
    /// The folder of a model
    pub model: PathBuf,

    /// A folder of PEFT with adapters for it
    pub adapter: PathBuf,

    /// A new folder for the model
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

/// What is looked at.
#[derive(clap::Args, Debug)]
pub struct Inspect {
    /// A folder with config.json and safetensors files, or a file; by default the small model of this repository
    #[arg(default_value = BUILT_IN, hide_default_value = true)]
    pub model: PathBuf,

    /// Print all layers, and end
    #[arg(long, conflicts_with_all = ["part", "batches", "milliseconds"])]
    pub list: bool,

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
}

impl Inspect {
    /// The batches, each once.
    pub fn batches(&self) -> Vec<usize> {
        once(self.batches.iter().copied().map(usize::from))
    }
}

/// What is written anew.
#[derive(clap::Args, Debug)]
pub struct Export {
    /// The folder of a model with quantized layers
    pub model: PathBuf,

    /// A new folder for the model
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

/// How fast a model learns, and on what.
#[derive(clap::Args, Debug)]
pub struct Learning {
    /// Sequences of a step
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,

    /// Tokens of a sequence
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,

    /// The highest learning rate
    #[arg(long, default_value_t = 3e-3)]
    pub rate: f64,

    /// Where weights and the order of sequences start from
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,
}

impl Learning {
    /// So many steps of it.
    pub fn course(&self, steps: u32) -> Course {
        Course {
            steps: steps as usize,
            batch: self.batch as usize,
            context: self.context as usize,
            rate: self.rate,
            seed: self.seed,
        }
    }
}

/// How texts are written.
#[derive(clap::Args, Debug)]
pub struct Write {
    /// A folder as the hub has it: config.json, safetensors files, tokenizer.json; by default a small model of this repository
    #[arg(default_value = BUILT_IN, hide_default_value = true)]
    pub model: PathBuf,

    /// A folder of PEFT with adapters for the model
    #[arg(long, value_name = "FOLDER")]
    pub adapter: Option<PathBuf>,

    /// A text to continue, - for standard input; several are continued at once. With --chat, what a user says
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,

    /// Talk to the model, a line at a time; with --prompt, one answer
    #[arg(long)]
    pub chat: bool,

    /// What the model is told before a conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,

    /// New tokens, at most; by default what generation_config.json says, or 256
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Option<u32>,

    /// Take the likeliest token each time
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,

    /// What logits are divided by; by default what generation_config.json says, as for the next four
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub temperature: Option<f64>,

    /// Choose from so many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "TOKENS")]
    pub top_k: Option<usize>,

    /// Choose from the likeliest tokens that have this much of the probability together
    #[arg(long, value_name = "PART")]
    pub top_p: Option<f64>,

    /// Choose from tokens at least this likely, as a part of the likeliest one
    #[arg(long, value_name = "PART")]
    pub min_p: Option<f64>,

    /// Make tokens that were there before less likely, by this factor
    #[arg(long, value_name = "FACTOR")]
    pub repetition_penalty: Option<f64>,

    /// Where random choices start from
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// End before this text; several may be given
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,

    /// Go on after tokens that end a text
    #[arg(long)]
    pub ignore_end: bool,

    /// How inputs of quantized layers are multiplied
    #[arg(long, value_enum, default_value_t)]
    pub activations: Inputs,

    /// In which numbers keys and values are held
    #[arg(long, value_enum, default_value_t)]
    pub cache: CacheType,

    /// In which numbers the head is held where the file does not quantize it
    #[arg(long, value_enum, default_value_t)]
    pub head: Head,

    /// Tokens of a prompt that go through the model at a time
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub piece: u32,

    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// Print one object of JSON at the end instead of text
    #[arg(long)]
    pub json: bool,
}

impl Write {
    /// Whether it is the model of this repository that writes.
    pub fn is_built_in(&self) -> bool {
        self.model.as_os_str() == BUILT_IN
    }
}
