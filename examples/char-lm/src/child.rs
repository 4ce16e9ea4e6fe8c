//! Runs in processes of their own, so that the peak memory of each is its own, with the machine that they ran on.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::args::{BackendName, Common};
use crate::high::High;
use crate::precision::Precision;
use crate::run::{self, Folder, Outcome};

/// One of several runs.
#[derive(Clone, Debug)]
pub struct Child {
    /// What it computes with.
    pub precision: Precision,
    /// What stays out of FP8.
    pub high: Option<High>,
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
            &self.precision.to_string(),
        ]);
        command.args(["--seed", &self.seed.to_string(), "--epochs", &self.epochs.to_string()]);
        command.arg("--out").arg(&self.folder);
        if let Some(high) = self.high {
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

/// What a result was measured with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The command.
    pub command: String,
    /// The day, in UTC.
    pub date: String,
    /// The processor.
    pub cpu: String,
    /// The processors that the program may use.
    pub cores: usize,
    /// The backend.
    pub backend: String,
    /// Whether the program was built with optimizations: its times mean nothing otherwise.
    pub optimized: bool,
}

impl Origin {
    /// This machine, today.
    pub fn here(backend: BackendName) -> Self {
        let command = command(std::env::args().skip(1));
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            command,
            date: time::OffsetDateTime::now_utc().date().to_string(),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            backend: backend.as_str().into(),
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// The command of these arguments, without the folder of its results: what is there tells nothing, and may tell too much.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut command = "char-lm".to_owned();
    let mut is_folder = false;
    for argument in arguments {
        if argument != "--out" && !argument.starts_with("--out=") && !is_folder {
            command = command + " " + &argument;
        }
        is_folder = argument == "--out";
    }
    command
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, date, cpu, cores, backend, optimized } = self;
        write!(f, "`{command}`, {date}, {cpu}, {cores} cores, backend {backend}")?;
        if !optimized {
            write!(f, ", built without optimizations: the times mean nothing")?;
        }
        Ok(())
    }
}

/// Tells on stderr which of how many runs begins, so that hours are not spent in silence.
pub fn announce(quiet: bool, index: usize, count: usize, what: &str) {
    if !quiet {
        eprintln!("run {}/{count}: {what}", index + 1);
    }
}

/// Items in their order, each once.
pub fn once<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = vec![];
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_its_folder() {
        let told = |text: &str| command(text.split(' ').map(str::to_owned));
        assert_eq!(told("compare --out /a/b --seed 1"), "char-lm compare --seed 1");
        assert_eq!(told("compare --out=/a/b --seed 1"), "char-lm compare --seed 1");
    }
}
