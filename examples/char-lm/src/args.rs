//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use burn_fp8_train::Wire;
use clap::{Args as ClapArgs, Parser, Subcommand};
use examples_common::BackendName;

use crate::high::High;
use crate::precision::{Arm, Precision};
use crate::run::Moments;
use crate::size::Size;

/// Trains a transformer language model on characters in f32 and in FP8, and compares them.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Trains one model, or goes on with it, and lets it write a text; with --peers its threads, with mpirun before it its processes divide each batch
    Train(Train),
    /// Lets a trained model write a text
    Generate(Generate),
    /// Trains with each precision and each seed, and writes comparison.json and differences.svg; exits with 1 where a goal is missed
    Compare(Compare),
}

/// What every command that trains is asked for.
#[derive(ClapArgs, Clone, Debug)]
pub struct Common {
    /// How large the model is and how long it trains
    #[arg(long, value_enum, default_value_t = Size::Tiny)]
    pub size: Size,

    /// The backend
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,

    /// Epochs [default: those of the size]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub epochs: Option<u32>,

    /// Show nothing on the way
    #[arg(long)]
    pub quiet: bool,
}

impl Common {
    /// The epochs to train.
    pub fn epochs(&self) -> usize {
        self.epochs.map_or(self.size.shape().epochs, |epochs| epochs as usize)
    }
}

#[derive(ClapArgs, Debug)]
pub struct Train {
    #[command(flatten)]
    pub common: Common,

    /// What to compute with: a policy, such as f32, m=fp8 or c=bf16,o=f32,m=fp8_delayed,a=bf16; with join=on, f32 joins batch and rows; with layers=fp8, linear layers are FP8 layers
    #[arg(long, default_value = "f32")]
    pub precision: Precision,

    /// Keep a role (output, grad_input, grad_weight), a kind of layers (qkv, projection, up, down, head), a block (block0, …) or one of its layers (block0.qkv, …) out of FP8
    #[arg(long, value_name = "PART")]
    pub high: Option<High>,

    /// What AdamW keeps its moments in: fp8 takes a quarter of the memory
    #[arg(long, value_enum, default_value_t = Moments::F32)]
    pub moments: Moments,

    /// Seed of the initial weights, of the order of the text and of dropout
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Measure on every hundredth step how well FP8 fits each product, and log it; the file must not exist
    #[arg(long, value_name = "LOG.jsonl")]
    pub observe: Option<PathBuf>,

    /// Go on with the run in --out from its last whole checkpoint
    #[arg(long)]
    pub resume: bool,

    /// The folder of the run [default: target/char-lm/SIZE-PRECISION-SEED]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Threads that divide each batch, and the cores, among them
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..))]
    pub peers: Option<u32>,

    /// What gradients travel as between peers: f32, bf16 or fp8
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    pub wire: Wire,

    /// How long a peer waits for the others, in seconds
    #[arg(long, default_value = "300", value_name = "SECONDS", value_parser = seconds)]
    pub wait: Duration,

    #[command(flatten)]
    pub sampling: Sampling,
}

#[derive(ClapArgs, Debug)]
pub struct Generate {
    /// The folder of a finished run
    #[arg(long, value_name = "DIR")]
    pub run: PathBuf,

    #[command(flatten)]
    pub sampling: Sampling,
}

/// A precision that others can be compared with.
fn reference(name: &str) -> Result<Precision, String> {
    match name.parse::<Precision>()? {
        precision if precision.is_f32() => Ok(precision),
        _ => Err("the reference is f32, join=on or a=high".into()),
    }
}

#[derive(ClapArgs, Debug)]
pub struct Compare {
    #[command(flatten)]
    pub common: Common,

    /// What to compute with, each as for train, or with a part kept out of FP8 as m=mxfp8-without-head; --reference is always among them, and a=high is the control: f32 in another order of sums, with other elements dropped
    #[arg(
        long = "precision",
        visible_alias = "precisions",
        value_name = "PRECISION",
        num_args = 1..,
        default_values = ["a=high", "m=fp8", "m=fp8_delayed"]
    )]
    pub precisions: Vec<Arm>,

    /// What the others are compared with: f32, join=on or a=high, which drops the elements that policies with the key a drop, so that less of a difference is noise
    #[arg(long, value_name = "PRECISION", default_value = "f32", value_parser = reference)]
    pub reference: Precision,

    /// Seeds of the initial weights, of the order of the text and of dropout
    #[arg(
        long = "seed",
        visible_alias = "seeds",
        value_name = "SEED",
        value_delimiter = ',',
        default_value = "1,2,3"
    )]
    pub seeds: Vec<u64>,

    /// Where the results and the runs go; runs that are there already are not trained again
    #[arg(long, value_name = "DIR", default_value = "target/char-lm/compare")]
    pub out: PathBuf,
}

/// How to draw characters.
#[derive(ClapArgs, Clone, Debug)]
pub struct Sampling {
    /// What the text begins with
    #[arg(long, default_value = "And God said")]
    pub prompt: String,

    /// Characters to write
    #[arg(long, value_name = "CHARACTERS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub length: u32,

    /// What logits are divided by: lower is safer, higher is bolder
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    pub temperature: f32,

    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    pub sampling_seed: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("not a whole number from 1 to 86400".into()),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("not a positive number".into()),
    }
}
