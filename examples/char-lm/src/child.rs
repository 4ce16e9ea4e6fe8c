//! Runs in processes of their own, so that the peak memory of each is its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::Common;
use crate::arm::Arm;
use crate::run::{self, Folder, Outcome};

/// One of several runs.
#[derive(Clone, Debug)]
pub struct Child {
    /// What it computes with.
    pub arm: Arm,
    /// Its seed.
    pub seed: u64,
    /// Its epochs.
    pub epochs: usize,
    /// Where it is kept.
    pub folder: PathBuf,
}

impl Child {
    /// Trains in a process of its own; goes on with what an earlier call left in the folder, and trains nothing where that is all.
    ///
    /// # Errors
    /// Where the process cannot be started or fails; passes on what it said.
    pub fn train(&self, common: &Common) -> Result<Outcome> {
        let folder = Folder::new(&self.folder);
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["train", "--quiet", "--size", common.size.as_str()]);
        command.args([
            "--backend",
            common.backend.as_str(),
            "--precision",
            &self.arm.precision.to_string(),
        ]);
        command.args(["--seed", &self.seed.to_string(), "--epochs", &self.epochs.to_string()]);
        command.arg("--out").arg(&self.folder);
        if let Some(high) = self.arm.high {
            command.args(["--high", &high.to_string()]);
        }
        if folder.settings().exists() {
            command.arg("--resume");
        }
        let output = command.stdin(Stdio::null()).output().context("cannot start a run")?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            // A panic says where before it says what: all of it.
            let said = if said.trim().is_empty() { "nothing" } else { said.trim() };
            let said = said.strip_prefix("error: ").unwrap_or(said);
            bail!("the run in {} failed ({}): {said}", self.folder.display(), output.status);
        }
        eprint!("{said}");
        run::read_json(&folder.outcome())?.context("a run that succeeded has an outcome")
    }
}

/// Tells on stderr which of how many runs begins, so that hours are not spent in silence.
pub fn announce(quiet: bool, index: usize, count: usize, what: &str) {
    if !quiet {
        eprintln!("run {}/{count}: {what}", index + 1);
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
