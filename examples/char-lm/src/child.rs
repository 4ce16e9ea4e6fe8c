//! Runs in processes of their own, so that the peak memory of each is its own.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::Common;
use crate::precision::Arm;
use crate::run::{self, Folder, Outcome};

/// Trains in a process of its own; goes on with what an earlier call left in the folder, and trains nothing where that is all.
fn train(arm: Arm, seed: u64, epochs: usize, out: &Path, common: &Common) -> Result<Outcome> {
    let folder = Folder::new(out);
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["train", "--quiet", "--size", common.size.as_str()]);
    command.args(["--backend", common.backend.as_str()]);
    command.args(["--precision", &arm.precision.to_string()]);
    command.args(["--seed", &seed.to_string(), "--epochs", &epochs.to_string()]);
    command.arg("--out").arg(out);
    if let Some(high) = arm.high {
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
        bail!("the run in {} failed ({}): {said}", out.display(), output.status);
    }
    eprint!("{said}");
    run::read_json(&folder.outcome())?.context("a run that succeeded has an outcome")
}

/// Trains all of these in their order, in folders of their own in this one. Tells on stderr which of them begins, so that hours are not spent
/// in silence.
pub fn train_all(
    runs: &[(Arm, u64)],
    epochs: usize,
    folder: &Path,
    common: &Common,
) -> Result<Vec<Outcome>> {
    run::make_folder(folder)?;
    let train = |(index, &(arm, seed)): (usize, &(Arm, u64))| {
        let name = format!("{arm}-{seed}");
        if !common.quiet {
            eprintln!("run {}/{}: {name}", index + 1, runs.len());
        }
        train(arm, seed, epochs, &folder.join(name), common)
    };
    runs.iter().enumerate().map(train).collect()
}
