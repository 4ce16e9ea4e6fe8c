//! Named sizes: the shape of the model and how long it trains.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How large a model is and how long it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Learns next to nothing: for tests
    Smoke,
    /// Minutes on two CPU cores
    Tiny,
    /// For two CPU cores whose matrix unit makes FP8 faster than f32
    Medium,
    /// The shape of nanoGPT's model of Shakespeare's characters: hours on a CPU, for a GPU
    Small,
    /// The shape of GPT-2 small, with characters as its tokens: for a GPU
    #[value(name = "125m", alias = "124m")]
    #[serde(rename = "125m")]
    M125,
}

/// The numbers of a [`Size`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Characters that the model sees at once.
    pub context: usize,
    /// Sequences a step.
    pub batch: usize,
    /// Steps an epoch; an epoch is what lies between two validations.
    pub steps: usize,
    /// How many of them a training has.
    pub epochs: usize,
    /// Batches of a validation.
    pub valid_batches: usize,
    /// The peak learning rate.
    pub learning_rate: f64,
    /// The share of activations that dropout zeroes.
    pub dropout: f64,
}

/// What f32 and FP8 must reach for [`compare`](mod@crate::compare) to call it a success.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goals {
    /// Nats a character that f32's final validation loss lies below that of the bigram model, mean over the seeds.
    pub below_bigram: f64,
    /// By what share FP8's final validation loss may differ from f32's, mean over the seeds.
    pub fp8_within: f64,
}

impl Size {
    /// The name that `--size` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Tiny => "tiny",
            Self::Medium => "medium",
            Self::Small => "small",
            Self::M125 => "125m",
        }
    }

    /// Its numbers.
    pub fn shape(self) -> Shape {
        // Layers, width, heads, context, batch; steps, epochs, batches of a validation; learning rate and dropout.
        let (model, training, rates) = match self {
            Self::Smoke => ([2, 32, 2, 32, 8], [12, 3, 4], [1e-2, 0.1]),
            Self::Tiny => ([2, 128, 4, 64, 16], [100, 12, 32], [3e-3, 0.05]),
            Self::Medium => ([4, 512, 8, 128, 16], [100, 12, 16], [1e-3, 0.1]),
            Self::Small => ([6, 384, 6, 256, 64], [250, 20, 20], [1e-3, 0.2]),
            Self::M125 => ([12, 768, 12, 1024, 8], [250, 20, 20], [6e-4, 0.1]),
        };
        let [layers, width, heads, context, batch] = model;
        let ([steps, epochs, valid_batches], [learning_rate, dropout]) = (training, rates);
        Shape {
            layers,
            width,
            heads,
            context,
            batch,
            steps,
            epochs,
            valid_batches,
            learning_rate,
            dropout,
        }
    }

    /// What a comparison must show; `None` where the model is too small to show anything.
    pub fn goals(self) -> Option<Goals> {
        match self {
            Self::Smoke => None,
            // FP8 may cost 1%; a transformer that does not clearly beat a table of pairs has learned nothing.
            _ => Some(Goals { below_bigram: 0.5, fp8_within: 0.01 }),
        }
    }
}
