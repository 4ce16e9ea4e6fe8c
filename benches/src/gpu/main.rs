//! Benchmarks of burn-fp8 on an NVIDIA GPU, the data for the comparison of its errors with torch's, and the report of a whole run.
//!
//! `cargo xtask gpu` runs it all; here are the single parts. Times are those of calls that are enqueued one after the other and
//! waited for together, over input sets that together exceed the L2 cache.

mod accuracy;
mod break_even;
mod device;
mod gemm;
mod host;
mod kernels;
mod library;
mod linear;
mod options;
mod report;
#[path = "../rows.rs"]
mod rows;
mod torch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use burn_fp8::{Capability, Fp8Backend};
use clap::{Args, Parser, Subcommand};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use examples_common::write_json;

use device::Gpu;
use options::{Fused, Options, Sink};
use torch::Torch;

/// Measures burn-fp8 on an NVIDIA GPU.
#[derive(Parser)]
#[command(name = "burn-fp8-gpu")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Print what the device can do in FP8, and which cuBLASLt does it; fails where that is not native
    Device {
        /// Write which cuBLASLt it is to this file as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Run one group of benchmarks and print a table; fails if a ratio is below its target
    Bench(Bench),
    /// Write codes, scales and products for gpu_accuracy.py
    Accuracy {
        /// The folder to write; made if it does not exist
        folder: PathBuf,
        /// Fewer and smaller products
        #[arg(long)]
        quick: bool,
    },
    /// Combine what the phases of a run have left in a folder into results.json, table.txt and table.md; needs no GPU
    Report {
        /// The folder
        folder: PathBuf,
    },
}

#[derive(Args)]
struct Bench {
    /// What to measure
    #[arg(value_parser = GROUPS.map(|(name, _)| name))]
    group: String,
    /// The results of gpu_peers.py on this device, to compare with
    #[arg(long, value_name = "FILE")]
    torch: Option<PathBuf>,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer shapes and fewer repetitions
    #[arg(long)]
    quick: bool,
    /// Begin no further shape of gpu-break-even after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 480)]
    seconds: u64,
}

/// A group of benchmarks: its name and what measures it.
type Group = (&'static str, fn(&Options, &mut Sink) -> Result<()>);

const GROUPS: [Group; 5] = [
    (gemm::GROUP, gemm::run),
    (kernels::GROUP, kernels::run),
    (linear::GROUP, linear::run),
    (host::GROUP, host::run),
    (break_even::GROUP, break_even::run),
];

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Device { json } => device(json.as_deref()),
        Task::Bench(arguments) => bench(arguments),
        Task::Accuracy { folder, quick } => accuracy::write(&folder, quick).map(|()| true),
        Task::Report { folder } => report::write(&folder).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the device runs FP8 natively.
fn device(json: Option<&Path>) -> Result<bool> {
    let gpu = Gpu::new()?;
    println!("{}, L2 cache {:.1} MB", gpu.name()?, gpu.l2_bytes()? as f64 / 1e6);
    let capability = Fp8Backend::<Fused>::capability(&Default::default());
    println!("{capability}");
    let library = library::loaded(&capability)?;
    println!("{library}");
    if let Some(path) = json {
        write_json(path, &library)?;
    }
    Ok(matches!(capability, Capability::Native(_)))
}

/// Whether no row is below its target.
fn bench(arguments: Bench) -> Result<bool> {
    let options = Options {
        gpu: Gpu::new()?,
        torch: arguments.torch.as_deref().map(Torch::load).transpose()?,
        quick: arguments.quick,
        time: Duration::from_secs(arguments.seconds),
    };
    if options.torch.is_none() {
        println!("no figures of torch: nothing is compared with it");
    }
    let (_, run) = GROUPS
        .into_iter()
        .find(|(name, _)| *name == arguments.group)
        .context("clap takes known groups only")?;
    let mut sink = Sink::new(arguments.json);
    run(&options, &mut sink)?;
    let rows = sink.into_rows();
    println!("{}", rows::table(&rows, UTF8_FULL_CONDENSED));
    Ok(rows::reach_their_targets(&rows))
}
