//! What runs on a host with an NVIDIA GPU: built, staged in one folder, run in place or packed into an archive.

mod archive;
mod programs;
mod stage;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::repository;
use crate::steps::Steps;

/// The name of the folder in the archive.
const NAME: &str = "burn-fp8-gpu";
/// An archive is carried to machines over slow links.
const MAX_ARCHIVE_BYTES: u64 = 60_000_000;

/// Builds the programs and runs them here. Returns the status of the script.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<ExitCode> {
    let script = repository::root().join("xtask/gpu/run.sh");
    if arguments.iter().any(|argument| ["-h", "--help"].contains(&argument.as_str())) {
        return status(&script, &[String::from("--help")]);
    }
    // Before minutes are spent on building: the script says what is missing, or wrong in the command line. `--list` needs no GPU.
    let check = Command::new(&script)
        .args(arguments)
        .arg("--check-only")
        .status()
        .with_context(|| format!("cannot start {}", script.display()))?;
    if !check.success() || arguments.iter().any(|argument| argument == "--check-only") {
        return Ok(code(check.code()));
    }
    let metadata = metadata()?;
    let manifest = stage::manifest(&metadata)?;
    let programs = programs::build(steps)?;
    let folder = folder(&metadata).join(NAME);
    steps.step("staging", || stage::write(&folder, &programs, &manifest))?;
    let mut arguments = arguments.to_vec();
    if !arguments.iter().any(|argument| argument == "--out") {
        let results = metadata.target_directory.join("gpu/results");
        arguments.extend([String::from("--out"), results.into_string()]);
    }
    status(&folder.join("run.sh"), &arguments)
}

/// Builds the programs and packs them.
pub fn bundle(steps: &mut Steps, out: Option<PathBuf>) -> Result<()> {
    let metadata = metadata()?;
    let manifest = stage::manifest(&metadata)?;
    let programs = programs::build(steps)?;
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

fn status(script: &Path, arguments: &[String]) -> Result<ExitCode> {
    let status = Command::new(script)
        .args(arguments)
        .status()
        .with_context(|| format!("cannot start {}", script.display()))?;
    Ok(code(status.code()))
}

/// Ended by a signal counts as failed.
fn code(code: Option<i32>) -> ExitCode {
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
