//! Benchmarks of burn-fp8, each against a reference that is measured in the same run.
//!
//! `cargo run --release -p burn-fp8-bench`; `--help` lists the options. A function's speed is given relative to that of its reference,
//! in runs or in bytes a second: higher is better. Absolute times depend on the machine, relative speeds far less.

mod attention;
mod cpu_gemm;
mod encoder;
mod generate;
mod harness;
mod lm;
mod mlp;
mod observatory;
mod optimizer;
mod overhead;
mod partner;
mod reference;
mod rows;
mod serving;
mod slices;
mod sums;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use burn_fp8_cpu::Unit;
use clap::Parser;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use examples_common::{Origin, check_place, write_json};
use harness::Options;
use rows::Row;
use serde::Serialize;

/// Measures burn-fp8 and prints a table. Fails if a relative speed is below its target.
#[derive(Parser)]
struct Arguments {
    /// Write the rows to this file as JSON, with the command, the commit, the day and the machine.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    /// The model of the group `generate`: a folder with an FP8 checkpoint, such as `generate train --shape qwen3-0.6b --steps 0` writes.
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Also measure PyTorch and llama.cpp, as far as the Python of `--python` has them.
    #[arg(long)]
    peers: bool,
    /// The Python that runs the peers.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

/// What `--json` writes.
#[derive(Serialize)]
struct Results {
    origin: Origin,
    rows: Vec<Row>,
}

/// A group of benchmarks: its name and what measures it.
type Group = (&'static str, fn(&Options) -> Vec<Row>);

const GROUPS: [Group; 12] = [
    (attention::GROUP, attention::run),
    (cpu_gemm::GROUP, cpu_gemm::run),
    (slices::GROUP, slices::run),
    (sums::GROUP, sums::run),
    (mlp::GROUP, mlp::run),
    (lm::GROUP, lm::run),
    (encoder::GROUP, encoder::run),
    (optimizer::GROUP, optimizer::run),
    (overhead::GROUP, overhead::run),
    (observatory::GROUP, observatory::run),
    (serving::GROUP, serving::run),
    (generate::GROUP, generate::run),
];

fn main() -> ExitCode {
    examples_common::main(|arguments| {
        Ok(if run(arguments)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Whether no row is below its target.
fn run(arguments: Arguments) -> Result<bool> {
    arguments.json.iter().try_for_each(|path| check_place(path))?;
    let options = Options {
        threads: arguments.threads,
        elements: arguments.elements,
        repetitions: arguments.repetitions.max(1),
        model: arguments.model,
        python: arguments.peers.then_some(arguments.python),
    };
    let is_wanted = |group| arguments.only.as_deref().is_none_or(|only| only == group);
    let groups = GROUPS.into_iter().filter(|(name, _)| is_wanted(*name));
    let rows: Vec<_> = groups.flat_map(|(_, run)| run(&options)).collect();
    println!("{}", rows::table(&rows, UTF8_FULL_CONDENSED));
    let mut origin = Origin::here("cargo xtask bench", &["--json", "--python", "--model"]);
    origin.unit = Some(Unit::current().to_string());
    let results = Results { origin, rows };
    if let Some(path) = arguments.json {
        write_json(&path, &results)?;
    }
    Ok(rows::reach_their_targets(&results.rows))
}
