//! Tasks of this repository: `cargo xtask --help`.

mod delegate;
#[cfg(test)]
mod features;
mod gpu;
mod licences;
mod package;
mod report;
mod repository;
mod sim;
mod skips;
mod steps;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use delegate::Mode;
use sim::Size;
use steps::Steps;
use suite::Scope;

/// Tasks of the burn-fp8 repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that has to pass before a commit
    ///
    /// In this order, stopping at the first failure: formatting, clippy (over every backend, which is also their type
    /// check), documentation, delegation, licences, packages, tests, doctests.
    Test {
        /// Only the backends flex and ndarray
        #[arg(long)]
        quick: bool,
    },
    /// Generate `Fp8Backend`'s delegation from the sources of burn-backend
    ///
    /// Writes crates/burn-fp8/src/shared/backend/delegate.rs. Run it after a change of burn's version or of the generator.
    Delegate {
        /// Write nothing; fail if the file differs from what would be written
        #[arg(long)]
        check: bool,
    },
    /// Check the licences of all dependencies against the list in xtask/src/licences.rs
    Licences,
    /// Pack the crates that are published, and check that each archive holds what its sources name
    Package,
    /// Run the exhaustive tests of the number formats in release mode (minutes)
    Exhaustive,
    /// Run the benchmarks in release mode; arguments go to the benchmark program
    #[command(disable_help_flag = true)]
    Bench {
        /// For example `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Show by M, N and K where FP8 is faster than f32 on this machine's CPU, measured in release mode
    ///
    /// It is kept for `Fp8Config::measured`. Arguments go to the program.
    #[command(disable_help_flag = true)]
    BreakEven {
        /// For example `--help`, `--again`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the programs for a GPU host in release mode, validate FP8 on this machine's GPU and measure it
    ///
    /// Checks first that the machine has what is needed; ends with status 2 and names what is missing if not. Results go to
    /// target/gpu/results unless --out says otherwise.
    #[command(disable_help_flag = true)]
    Gpu {
        /// For example `--help`, `--validate-only`, `--quick`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run tests that need an NVIDIA GPU on a simulated one, which checks the order of everything that touches device memory
    ///
    /// Needs g++, and fetches CUDA's headers. What it can and cannot tell stands in xtask/sim/README.md.
    Sim {
        /// Only tests whose names contain this
        filter: Option<String>,
        /// Tests as large as on a GPU: hours
        #[arg(long)]
        full: bool,
    },
    /// Render a log of the FP8 observatory as one HTML page, to be opened from its file
    Report {
        /// The log, JSON lines, that an `Observatory` has written
        #[arg(value_name = "LOG")]
        log: PathBuf,
        /// The page [default: the log's name with the extension html]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Pack the programs for a GPU host, with the one that runs the others, into one archive
    ///
    /// For a Linux x86-64 machine with driver, CUDA libraries and headers, but without Rust: unpack it there, start run.sh.
    /// Fails if the archive is too large, or if a program imports symbols newer than GLIBC_2.34.
    GpuBundle {
        /// The archive [default: target/gpu/burn-fp8-gpu.tar.gz]
        #[arg(long, value_name = "FILE.tar.gz")]
        out: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let mut steps = Steps::new();
    let result = run(Arguments::parse().task, &mut steps);
    steps.print_summary();
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("\nxtask failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task, steps: &mut Steps) -> anyhow::Result<ExitCode> {
    match task {
        // Its status says whether something failed or something is missing.
        Task::Gpu { arguments } => return gpu::run(steps, &arguments),
        Task::Sim { filter, full } => sim::run(
            steps,
            &Vec::from_iter(sim::TESTS.split_whitespace()),
            filter.as_deref(),
            if full { Size::Full } else { Size::Small },
        ),
        Task::Report { log, out } => report::run(&log, out),
        Task::GpuBundle { out } => gpu::bundle(steps, out),
        Task::Test { quick } => suite::run(steps, if quick { Scope::Quick } else { Scope::Full }),
        Task::Delegate { check: true } => steps.step("delegation", || delegate::run(Mode::Check)),
        Task::Delegate { check: false } => steps.step("delegation", || delegate::run(Mode::Write)),
        Task::Licences => steps.step("licences", licences::run),
        Task::Package => steps.step("packages", package::run),
        Task::Exhaustive => {
            let command =
                "test --release -p burn-fp8-cpu --test kernels -- --ignored --nocapture every_f32";
            steps.cargo("exhaustive tests", &command.split(' ').collect::<Vec<_>>())
        }
        Task::Bench { arguments } => {
            // By itself: beside the benchmarks it would be built with their features.
            let f32 = ["build", "--release", "-p", "burn-fp8-bench-f32"];
            steps.cargo("f32 as Burn builds it", &f32)?;
            let mut command = vec!["run", "--release", "-p", "burn-fp8-bench", "--"];
            command.extend(arguments.iter().map(String::as_str));
            steps.cargo("benchmarks", &command)
        }
        Task::BreakEven { arguments } => {
            let mut command =
                vec!["run", "--release", "-p", "burn-fp8-bench", "--bin", "break-even", "--"];
            command.extend(arguments.iter().map(String::as_str));
            steps.cargo("break-even", &command)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}
