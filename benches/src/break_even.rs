//! Where FP8 is faster than f32 on this machine: measured, shown as tables, and kept for `Fp8Config::measured`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::backend::{Autodiff, Flex};
use burn_fp8::{Fp8Backend, Fp8Config, Gains, Gemm, gains};
use burn_fp8_train::policy::Policy;
use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

type B = Fp8Backend<Autodiff<Flex>>;

/// Shows by M, N and K how fast a product in FP8 is in percent of the same in f32, on Flex, and measures it where that was not done before.
#[derive(Parser)]
#[command(name = "cargo xtask break-even")]
struct Arguments {
    /// The recipe, as the key m of a policy: fp8, fp8_rowwise, mxfp8, …
    #[arg(long, value_name = "M", default_value = "fp8")]
    recipe: String,
    /// Measure again what was measured before
    #[arg(long)]
    again: bool,
}

fn main() -> ExitCode {
    examples_common::main(run)
}

fn run(Arguments { recipe, again }: Arguments) -> Result<ExitCode> {
    let policy = Policy::parse(&format!("p=f32,m={recipe}"))?;
    let config = policy.configure(Fp8Config::default());
    let device = Default::default();
    let kept = gains::kept::<B>(&config, &device).filter(|_| !again);
    let gains = kept.map_or_else(|| measure(&config), Ok)?;
    for k in gains.sizes() {
        println!("{}", of_k(&gains, *k));
    }
    println!(
        "Speed in FP8 ({recipe}) in percent of that in f32: alone / with both gradients. Fp8Config::measured takes those of {}% or more.\n{}",
        Gains::LEAST,
        gains.measured_on()
    );
    let path = gains::file::<B>(&config, &device);
    match (path, gains::kept::<B>(&config, &device)) {
        (Some(path), Some(_)) => {
            println!("Kept in {}; --again measures again.", path.display());
        }
        (Some(path), None) => eprintln!(
            "Not kept: {} cannot be written; name another folder in BURN_FP8_CACHE.",
            path.display()
        ),
        (None, _) => eprintln!("Not kept: name a folder in BURN_FP8_CACHE."),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(config: &Fp8Config) -> Result<Gains> {
    let gains = gains::measure::<B>(config, &Default::default(), |done, total| {
        eprint!("\rmeasuring: {done} of {total} shapes");
    });
    eprintln!();
    gains.context("FP8 cannot be measured here")
}

/// The gains with and without gradients, in percent.
fn both(gains: &Gains, m: usize, n: usize, k: usize) -> [u32; 2] {
    [false, true].map(|with_gradients| gains.of(Gemm::matrix(m, n, k), with_gradients))
}

fn of_k(gains: &Gains, k: usize) -> Table {
    let sizes = gains.sizes();
    let first = |name: String| [name].into_iter();
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(first(format!("K = {k}")).chain(sizes.iter().map(|n| format!("N = {n}"))));
    for &m in sizes {
        let cells = sizes.iter().map(|&n| {
            let [forward, training] = both(gains, m, n, k);
            format!("{forward} / {training}")
        });
        table.add_row(first(format!("M = {m}")).chain(cells));
    }
    table
}
