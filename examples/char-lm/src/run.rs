//! The folder of a run: what it was asked for, and what it came to.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use examples_common::{BackendName, Origin};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::curve::Point;
use crate::high::High;
use crate::precision::Precision;
use crate::size::Size;

/// The name of the program, as cargo and command lines call it.
pub const PROGRAM: &str = env!("CARGO_PKG_NAME");

/// The files of a run.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of this path, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What the run was asked for.
    pub fn settings(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// What it came to; only a finished run has it.
    pub fn outcome(&self) -> PathBuf {
        self.0.join("outcome.json")
    }

    /// Locked by the process that trains in the folder.
    pub fn lock(&self) -> PathBuf {
        self.0.join("run.lock")
    }

    /// The losses of each epoch so far.
    pub fn losses(&self) -> PathBuf {
        self.0.join("losses.jsonl")
    }

    /// The trained model.
    pub fn weights(&self) -> PathBuf {
        self.0.join("weights.safetensors")
    }

    /// The Learner's checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoint")
    }
}

/// What the optimizer keeps its moments in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Moments {
    /// f32.
    #[default]
    F32,
    /// FP8, see [`Moments8`](burn_fp8_train::Moments8).
    Fp8,
}

/// What a run was asked for: all that its result depends on, but the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub size: Size,
    /// What it computes with.
    pub precision: Precision,
    /// What stays out of FP8 although the precision is FP8.
    pub high: Option<High>,
    pub backend: BackendName,
    #[serde(default)]
    pub moments: Moments,
    /// The seed of weights, order and dropout.
    pub seed: u64,
    pub epochs: usize,
    /// Of files of earlier versions, which could stop a run early.
    #[serde(default, skip_serializing)]
    pub patience: IgnoredAny,
    /// The characters of the text, sorted.
    pub vocabulary: String,
    /// CRC-32 of the text.
    pub text: u32,
}

impl Settings {
    /// Checks that a run with these settings can go on as one with those.
    ///
    /// # Errors
    /// Names the first setting that differs, with both values.
    pub fn check_same(&self, asked: &Self) -> Result<()> {
        let fields = |settings: &Self| match serde_json::to_value(settings) {
            Ok(serde_json::Value::Object(fields)) => fields,
            other => unreachable!("settings serialize as an object: {other:?}"),
        };
        let asked = fields(asked);
        for (name, value) in fields(self) {
            ensure!(
                value == asked[&name],
                "it was begun with {name} {value} instead of {}",
                asked[&name]
            );
        }
        Ok(())
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The losses of all epochs.
    pub losses: Vec<Point>,
    /// The loss of the bigram model on the characters of a validation, in nats a character.
    pub bigram_loss: f64,
    /// The same of the frequencies of characters.
    pub unigram_loss: f64,
    /// Characters of training a second, validation not counted: of the process that finished the run; none where nothing was left to train.
    pub tokens_per_second: Option<f64>,
    /// Seconds of training in that process, validation not counted.
    pub seconds: f64,
    /// The most memory that the process held until the training had ended, in bytes: of the CPU, and on Linux only; none of a resumed run.
    pub peak_memory: Option<u64>,
    /// The share of a training step's matrix FLOPs that ran in FP8.
    pub fp8_share: f64,
    /// Whether the run began in another process.
    pub resumed: bool,
    /// The processes, or threads, that finished the run together; one where an earlier version of this program wrote the folder.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub peers: usize,
    /// Bytes that the first of them sent to the others in a step; 0 of one alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_a_step: usize,
    /// CRC-32 of `weights.safetensors`; none where an earlier version of this program wrote the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_crc32: Option<u32>,
    /// What the process that finished the run was; none where an earlier version of this program wrote the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

fn one() -> usize {
    1
}

fn is_one(peers: &usize) -> bool {
    *peers == 1
}

fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

impl Outcome {
    /// For tests: that of a run with these validation losses, one an epoch.
    #[cfg(test)]
    pub fn made_up(bigram_loss: f64, valid_losses: &[f64]) -> Self {
        let point = |(epoch, &valid_loss)| Point { epoch, train_loss: 9.0, valid_loss };
        Self {
            losses: (1..).zip(valid_losses).map(point).collect(),
            bigram_loss,
            ..Self::default()
        }
    }

    /// The validation loss after the last epoch.
    pub fn final_loss(&self) -> f64 {
        self.losses.last().map_or(f64::NAN, |point| point.valid_loss)
    }
}

/// The mean; NaN of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut total, mut count) = (0.0, 0.0);
    for value in values {
        total += value;
        count += 1.0;
    }
    total / count
}

/// The CRC-32 that a run's weights have to have. Says on stderr where there is none, since damage to them then goes unseen.
pub fn weights_crc32(folder: &Folder, outcome: Option<&Outcome>) -> Option<u32> {
    let crc32 = outcome.and_then(|outcome| outcome.weights_crc32);
    if crc32.is_none() {
        eprintln!(
            "note: the weights in {} are taken as they are: {} has no checksum of them",
            folder.path().display(),
            folder.outcome().display()
        );
    }
    crc32
}

/// Makes a folder, and those that it lies in.
pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Reads a file of JSON; `None` where there is none.
///
/// # Errors
/// Where it cannot be read or holds something else; names it.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let json = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        json => json.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_slice(&json).map(Some).with_context(|| format!("{}", path.display()))
}

/// The most memory that this process ever held, in bytes: `VmHWM` of Linux; `None` elsewhere.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}
