//! What runs on a host with an NVIDIA GPU: built, staged in one folder, run in place or packed into an archive.

mod programs;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use burn_fp8_gpu_run::Arguments;
use clap::{CommandFactory, FromArgMatches};

use crate::repository;
use crate::steps::Steps;

/// The name of the folder in the archive.
const NAME: &str = "burn-fp8-gpu";
/// An archive is carried to machines over slow links.
const MAX_ARCHIVE_BYTES: u64 = 60_000_000;

/// Builds the programs and runs them here. Returns the status of the run.
pub fn run(steps: &mut Steps, given: &[String]) -> Result<ExitCode> {
    let command = Arguments::command().name("cargo xtask gpu").bin_name("cargo xtask gpu");
    let words = std::iter::once("gpu").chain(given.iter().map(String::as_str));
    let arguments = match command.try_get_matches_from(words) {
        Ok(matches) => Arguments::from_arg_matches(&matches)?,
        Err(error) => {
            error.print()?;
            return Ok(code(Some(error.exit_code())));
        }
    };
    // Before minutes are spent on building: what this machine lacks is said now, as is what is wrong in the command line. Phases are
    // listed without a GPU.
    let status = burn_fp8_gpu_run::run(&arguments, None, "cargo xtask gpu")?;
    if status != 0 || arguments.check_only {
        return Ok(ExitCode::from(status));
    }
    let folder = repository::target()?.join("gpu");
    stage(steps, &folder, false)?;
    let script = folder.join(NAME).join("run.sh");
    let mut command = Command::new(&script);
    command.args(given);
    if arguments.out.is_none() {
        command.arg("--out").arg(folder.join("results"));
    }
    let status = command.status().with_context(|| format!("cannot start {}", script.display()))?;
    Ok(code(status.code()))
}

/// Builds the programs and packs them.
pub fn bundle(steps: &mut Steps, out: Option<PathBuf>) -> Result<()> {
    let folder = repository::target()?.join("gpu");
    stage(steps, &folder, true)?;
    let archive = out.unwrap_or_else(|| folder.join(format!("{NAME}.tar.gz")));
    steps.step("archive", || pack(&folder, &archive))
}

/// Builds the programs and stages them in a folder, with what starts them.
fn stage(steps: &mut Steps, folder: &Path, for_another_host: bool) -> Result<()> {
    let manifest = stage::manifest();
    let built = steps.step("programs for the GPU host", programs::build)?;
    if for_another_host {
        let check = || built.iter().try_for_each(|built| programs::check_symbols(&built.path));
        steps.step("symbols", check)?;
    }
    steps.step("staging", || stage::write(&folder.join(NAME), &built, &manifest))
}

/// Packs what is staged in a folder; owner and times of this machine are nobody's business.
fn pack(folder: &Path, archive: &Path) -> Result<()> {
    if let Some(parent) = archive.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let nobody = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"];
    let mut command = Command::new("tar");
    command.args(["--create", "--use-compress-program=gzip -9"]).args(nobody);
    let status = command.arg("--file").arg(archive).arg("-C").arg(folder).arg(NAME).status();
    let status = status.context("cannot start tar")?;
    ensure!(status.success(), "tar ended with {status} for {}", archive.display());
    let bytes = fs::metadata(archive)?.len();
    let megabytes = [bytes, MAX_ARCHIVE_BYTES].map(|bytes| bytes as f64 / 1e6);
    println!("  {}: {:.1} MB, of at most {:.0}", archive.display(), megabytes[0], megabytes[1]);
    println!("  on the GPU host: tar xzf {NAME}.tar.gz && {NAME}/run.sh");
    ensure!(
        bytes < MAX_ARCHIVE_BYTES,
        "{} is {bytes} bytes large, {MAX_ARCHIVE_BYTES} are allowed: see which program grew, in {}",
        archive.display(),
        folder.join(NAME).join("bin").display()
    );
    Ok(())
}

/// Ended by a signal counts as failed.
fn code(code: Option<i32>) -> ExitCode {
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
