//! What runs on a host with an NVIDIA GPU: built, staged in one folder, run in place or packed into an archive.

mod archive;
mod programs;
mod stage;
mod symbols;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use burn_fp8_gpu_run::Arguments;
use cargo_metadata::{Metadata, MetadataCommand};
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
    let check = Arguments { check_only: true, ..arguments.clone() };
    let status = burn_fp8_gpu_run::run(&check, None, "cargo xtask gpu")?;
    if status != 0 || arguments.check_only {
        return Ok(ExitCode::from(status));
    }
    let metadata = metadata()?;
    let manifest = stage::manifest(&metadata)?;
    let programs = programs::build(steps, &metadata)?;
    let folder = folder(&metadata).join(NAME);
    steps.step("staging", || stage::write(&folder, &programs, &manifest))?;
    let mut given = given.to_vec();
    if arguments.out.is_none() {
        let results = metadata.target_directory.join("gpu/results");
        given.extend([String::from("--out"), results.into_string()]);
    }
    let script = folder.join("run.sh");
    let status = Command::new(&script)
        .args(given)
        .status()
        .with_context(|| format!("cannot start {}", script.display()))?;
    Ok(code(status.code()))
}

/// Builds the programs and packs them.
pub fn bundle(steps: &mut Steps, out: Option<PathBuf>) -> Result<()> {
    let metadata = metadata()?;
    let manifest = stage::manifest(&metadata)?;
    let programs = programs::build(steps, &metadata)?;
    steps.step("symbols", || {
        programs.iter().try_for_each(|program| symbols::check(&program.path, program.name))
    })?;
    let folder = folder(&metadata);
    let staged = folder.join(NAME);
    steps.step("staging", || stage::write(&staged, &programs, &manifest))?;
    let archive = out.unwrap_or_else(|| folder.join(format!("{NAME}.tar.gz")));
    steps.step("archive", || {
        let bytes = archive::write(&archive, &staged, NAME)?;
        println!(
            "  {}: {:.1} MB, of at most {:.0}",
            archive.display(),
            bytes as f64 / 1e6,
            MAX_ARCHIVE_BYTES as f64 / 1e6
        );
        println!("  on the GPU host: tar xzf {NAME}.tar.gz && {NAME}/run.sh");
        ensure!(
            bytes < MAX_ARCHIVE_BYTES,
            "{} is {bytes} bytes large, {MAX_ARCHIVE_BYTES} are allowed: see which program grew, \
             in {}",
            archive.display(),
            staged.join("bin").display()
        );
        Ok(())
    })
}

fn metadata() -> Result<Metadata> {
    let metadata = MetadataCommand::new()
        .manifest_path(repository::root().join("Cargo.toml"))
        .no_deps()
        .exec()?;
    Ok(metadata)
}

fn folder(metadata: &Metadata) -> PathBuf {
    metadata.target_directory.join("gpu").into_std_path_buf()
}

/// Ended by a signal counts as failed.
fn code(code: Option<i32>) -> ExitCode {
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
