//! Trains the same classifier of handwritten digits in f32 and in FP8, by changing one type.

mod args;
mod data;
mod model;
mod plot;
mod report;
mod train;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::Backend;
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul};
use indicatif::{ProgressBar, ProgressStyle};

use args::{Args, BackendName};
use data::Digits;
use report::Run;

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // File names and fields may hold line breaks: an error stays one line.
            eprintln!("{}", format!("error: {error:#}").replace(char::is_control, " "));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let config = match &args.config {
        Some(path) => Fp8Config::load(path)?,
        None => Fp8Config::default(),
    };
    match args.backend {
        BackendName::Flex => compare::<Flex>(args, &config),
        BackendName::Ndarray => compare::<NdArray>(args, &config),
    }
}

/// Trains with each seed in f32 and in FP8 and reports both.
fn compare<B: Backend + Fp8Matmul>(args: &Args, config: &Fp8Config) -> Result<()> {
    config.check::<B>(&B::Device::default())?;
    let digits = Digits::load(args.data.as_deref())?;
    plot::prepare(&args.out)?;

    let steps = train::steps(&digits) * args.epochs as usize;
    let progress = progress_bar((steps * 2 * args.seeds.len()) as u64)?;
    let mut runs = Vec::new();
    for &seed in &args.seeds {
        progress.set_message(format!("f32, seed {seed}"));
        let outcome = train::train::<Autodiff<B>>(&digits, args.epochs, seed, &progress);
        runs.push(Run::new("f32", seed, &outcome));

        progress.set_message(format!("FP8, seed {seed}"));
        // The only difference: this type.
        let train =
            || train::train::<Fp8Backend<Autodiff<B>>>(&digits, args.epochs, seed, &progress);
        let outcome = config.scope(train);
        let run = Run::new("fp8-current", seed, &outcome);
        let images = digits.train.len().min(train::BATCH);
        let expected = model::expected_products(config, images);
        assert_eq!(
            run.fp8_products_per_step,
            expected.iter().map(|layer| layer.products).sum::<usize>(),
            "a step runs other products in FP8 than the filter takes:\n{}",
            outcome.first_step
        );
        if runs.len() == 1 && !args.json {
            progress.suspend(|| print(&report::first_step(&outcome.first_step, &expected)))?;
        }
        runs.push(run);
    }
    progress.finish_and_clear();

    let picture = plot::loss_curves(&args.out, &runs)?;
    match args.json {
        true => print(&report::json(args, &runs)),
        false => print(&format!("{}\nloss curves: {}\n", report::table(&runs), picture.display())),
    }
}

/// A bar on stderr; hidden where stderr is no terminal.
fn progress_bar(steps: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:14} {wide_bar} {pos}/{len} steps, {eta} left")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

/// Not `print!`, which panics where the reader of a pipe has gone: that is no error here.
fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}
