//! The program that an archive carries: `run.sh` beside it starts it.

use std::path::Path;
use std::process::ExitCode;

use burn_fp8_gpu_run::{Arguments, run};
use clap::Parser;

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let arguments = Arguments::parse_from([&["run.sh".to_owned()], &given[..]].concat());
    let command = format!("run.sh {}", given.join(" "));
    // The archive is the folder above `bin/`, which holds this program.
    let result = std::env::current_exe().map_err(anyhow::Error::from).and_then(|program| {
        let archive = program.ancestors().nth(2).unwrap_or(Path::new("/"));
        run(&arguments, Some(archive), command.trim_end())
    });
    ExitCode::from(result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        2
    }))
}
