//! The program that an archive carries: `run.sh` beside it starts it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn_fp8_gpu_run::{Arguments, interrupt, run};
use clap::Parser;

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let arguments =
        Arguments::parse_from(std::iter::once("run.sh").chain(given.iter().map(String::as_str)));
    let command = format!("run.sh {}", given.join(" "));
    let result = interrupt::listen()
        .and_then(|()| archive())
        .and_then(|archive| run(&arguments, Some(&archive), command.trim_end()));
    ExitCode::from(result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        2
    }))
}

/// The folder of the archive: that above `bin/`, which holds this program.
fn archive() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(Path::parent);
    Ok(folder.unwrap_or(Path::new("/")).to_path_buf())
}
