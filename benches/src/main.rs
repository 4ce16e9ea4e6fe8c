//! Benchmarks of burn-fp8, each against a reference that is measured in the same run.
//!
//! `cargo run --release -p burn-fp8-bench`; `--help` lists the options. A function's speed is given relative to that of its reference,
//! in runs or in bytes a second: higher is better. Absolute times depend on the machine, relative speeds far less.

mod checkpoint;
mod cpu_gemm;
mod harness;
mod lm;
mod mlp;
mod observatory;
mod origin;
mod overhead;
mod partner;
mod peers;
mod picture;
mod plans;
mod reference;
mod rows;
mod serving;
mod slices;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use harness::{Options, Row};
use origin::Origin;
use serde::Serialize;

/// Measures burn-fp8 and prints a table. Fails if a relative speed is below its target.
#[derive(Parser)]
struct Arguments {
    /// Write the rows to this file as JSON, with the command, the commit, the day and the machine.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the training steps of the group `mlp` into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Run one group only.
    #[arg(long, value_name = "GROUP", value_parser = GROUPS.map(|(name, _)| name))]
    only: Option<String>,
    /// Thread counts.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Elements per slice.
    #[arg(long, default_value_t = 16 << 20)]
    elements: usize,
    /// Interleaved repetitions, of which medians are reported.
    #[arg(long, default_value_t = 21)]
    repetitions: usize,
    /// Also measure JAX, PyTorch and ml_dtypes, as far as the Python of `--python` has them.
    #[arg(long)]
    peers: bool,
    /// The Python that runs the peers.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

/// What a file of results holds.
#[derive(Serialize)]
struct Results<'a> {
    origin: Origin,
    rows: &'a [Row],
}

/// A group of benchmarks: its name and what measures it.
type Group = (&'static str, fn(&Options) -> Vec<Row>);

const GROUPS: [Group; 9] = [
    (cpu_gemm::GROUP, cpu_gemm::run),
    (slices::GROUP, slices::run),
    (mlp::GROUP, mlp::run),
    (lm::GROUP, lm::run),
    (overhead::GROUP, overhead::run),
    (plans::GROUP, plans::run),
    (observatory::GROUP, observatory::run),
    (serving::GROUP, serving::run),
    (checkpoint::GROUP, checkpoint::run),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        threads: arguments.threads,
        elements: arguments.elements,
        repetitions: arguments.repetitions.max(1),
        python: arguments.peers.then(|| arguments.python.clone()),
    };
    let mut rows = Vec::new();
    for (name, run) in GROUPS {
        if arguments.only.as_deref().is_none_or(|only| only == name) {
            rows.extend(run(&options));
        }
    }
    if arguments.peers && arguments.only.as_deref().is_none_or(|only| only == slices::GROUP) {
        match peers::run(&options, &arguments.python) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{}", harness::table(&rows, UTF8_FULL_CONDENSED));
    let origin = Origin::here();
    if let Some(path) = arguments.picture {
        let drawn = picture::draw(&rows, &origin).map_err(|error| error.to_string());
        let written = drawn.and_then(|svg| {
            std::fs::write(&path, svg).map_err(|error| format!("{}: {error}", path.display()))
        });
        if let Err(error) = written {
            eprintln!("no picture: {error}");
            return ExitCode::FAILURE;
        }
    }
    if let Some(path) = arguments.json {
        let results = Results { origin, rows: &rows };
        let json = serde_json::to_string_pretty(&results).expect("results are plain data");
        if let Err(error) = std::fs::write(&path, json + "\n") {
            eprintln!("cannot write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    let missed = rows.iter().filter(|row| row.misses_target()).count();
    if missed > 0 {
        eprintln!("{missed} of {} rows are below their target", rows.len());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
