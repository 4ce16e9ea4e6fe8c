//! What the memory of a training holds, with what is saved and moments in f32 and in FP8: measured, and shown as a table.

use std::cell::Cell;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;

use anyhow::{Result, ensure};
use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use char_lm::{Moments, Phase, Precision, Size, training_steps};
use clap::Parser;
use examples_common::{Origin, print};
use peak_alloc::PeakAlloc;
use serde::{Deserialize, Serialize};

/// It counts for the whole program.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const ARMS: [(&str, Moments); 7] = [
    ("f32", Moments::F32),
    ("a=high", Moments::F32),
    ("m=bf16,a=high", Moments::F32),
    ("m=fp8,fused=off", Moments::F32),
    ("m=fp8", Moments::F32),
    ("m=fp8,saved=fp8", Moments::F32),
    ("m=fp8,saved=fp8", Moments::Fp8),
];

/// The steps of an arm; the last one is measured. The first makes the moments.
const STEPS: usize = 3;

/// What a step of char-lm, size medium, holds on Flex: weights, moments, gradients, and what comes on top at its peaks.
#[derive(Parser)]
struct Arguments {
    /// Measure one arm in this process, and print what it holds as JSON
    #[arg(long, hide = true)]
    arm: Option<usize>,
}

/// Bytes of a step.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Held {
    weights: usize,
    moments: usize,
    /// Buffers that one step leaves for the next.
    buffers: usize,
    /// After the backward pass.
    gradients: usize,
    /// Above all that lasts, at the peak of forward and backward pass: saved activations and gradients.
    passes: usize,
    /// Above all that lasts, at the peak of the optimizer: gradients.
    optimizer: usize,
}

impl Held {
    /// What there is between steps.
    fn lasting(self) -> usize {
        self.weights + self.moments + self.buffers
    }

    fn peak(self) -> usize {
        self.lasting() + self.passes.max(self.optimizer)
    }
}

/// What the steps of an arm hold when they are somewhere. What comes with the first step counts as moments until it is known what is left without them.
fn seen(held: &Cell<Held>, phase: Phase) {
    let (now, peak) = (MEMORY.current_usage(), MEMORY.peak_usage());
    let mut sizes = held.get();
    let lasting = sizes.lasting();
    match phase {
        Phase::Made => sizes.weights = now,
        Phase::Backward => {
            sizes.gradients = now - lasting;
            sizes.passes = peak - lasting;
        }
        Phase::Stepped => {
            sizes.optimizer = peak - lasting;
            sizes.moments = now - sizes.weights;
        }
    }
    held.set(sizes);
    MEMORY.reset_peak_usage();
}

fn measure(arm: usize) -> Result<Held> {
    let (precision, moments) = ARMS[arm];
    let precision: Precision = precision.parse().map_err(anyhow::Error::msg)?;
    let (start, held) = (MEMORY.current_usage(), Rc::new(Cell::new(Held::default())));
    let seen_here = held.clone();
    let (at, shape) = (move |phase| seen(&seen_here, phase), Size::Medium.shape());
    let mut step = training_steps::<Fp8Backend<Autodiff<Flex>>>(shape, precision, moments, at)?;
    (0..STEPS).for_each(|_| step());
    drop(step);
    let mut held = held.get();
    held.weights -= start;
    held.buffers = MEMORY.current_usage() - start;
    held.moments -= held.buffers;
    Ok(held)
}

/// In a process of its own, which has no buffers of the arms before.
fn in_child(arm: usize) -> Result<Held> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["--arm", &arm.to_string()]).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} has failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn main() -> ExitCode {
    examples_common::main(run)
}

fn run(Arguments { arm }: Arguments) -> Result<ExitCode> {
    if let Some(arm) = arm {
        print(&serde_json::to_string(&measure(arm)?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(
        "| products | moments in | weights | moments | buffers | gradients | passes | optimizer | peak |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    )?;
    for (arm, (precision, moments)) in ARMS.into_iter().enumerate() {
        let held = in_child(arm)?;
        let kept_in = match moments {
            Moments::F32 => "f32",
            Moments::Fp8 => "FP8",
        };
        let Held { weights, moments, buffers, gradients, passes, optimizer } = held;
        let sizes = [weights, moments, buffers, gradients, passes, optimizer, held.peak()];
        let sizes = sizes.map(|bytes| format!("{:.1}", mib(bytes))).join(" | ");
        print(&format!("| {precision} | {kept_in} | {sizes} |\n"))?;
    }
    let origin = Origin::here("cargo run --release -p burn-fp8-bench --bin memory", &[]);
    print(&format!("\nMiB; {origin}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
