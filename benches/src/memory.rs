//! What the memory of a training holds, with what is saved and moments in f32 and in FP8: measured, and shown as a table.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use burn_fp8::report::memory::{Counting, Profile, bars};
use char_lm::{Moments, Phase, Precision, Shape, Size, different_characters, training_steps};
use clap::Parser;
use examples_common::{Origin, check_place, print, write, write_json};
use serde::{Deserialize, Serialize};

/// It counts for the whole program.
#[global_allocator]
static MEMORY: Counting = Counting;

const ARMS: [(&str, Moments); 6] = [
    ("f32", Moments::F32),
    ("a=high", Moments::F32),
    ("m=bf16,a=high", Moments::F32),
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
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rows into this file
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
    /// Measure PyTorch, too, by this Python
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
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
    /// At the peak of the process, less what it held before the model; on Linux.
    process: Option<usize>,
}

impl Held {
    /// What there is between steps.
    fn lasting(self) -> usize {
        self.weights + self.moments + self.buffers
    }

    /// At the larger of both peaks.
    fn on_top(self) -> usize {
        self.passes.max(self.optimizer)
    }

    fn peak(self) -> usize {
        self.lasting() + self.on_top()
    }
}

fn measure(arm: usize) -> Result<Held> {
    let (precision, moments) = ARMS[arm];
    let precision: Precision = precision.parse().map_err(anyhow::Error::msg)?;
    let before = of_process("VmRSS:");
    let profile = Rc::new(RefCell::new(Profile::start()));
    let seen_here = profile.clone();
    let at = move |phase| {
        seen_here.borrow_mut().mark(match phase {
            Phase::Made => "weights",
            Phase::Backward => "backward",
            Phase::Stepped => "step",
        });
    };
    let shape = Size::Medium.shape();
    let mut step = training_steps::<Fp8Backend<Autodiff<Flex>>>(shape, precision, moments, at)?;
    (0..STEPS).for_each(|_| step());
    drop(step);
    let mut profile = profile.borrow_mut();
    profile.mark("left");
    let [weights, backward, step, left] =
        ["weights", "backward", "step", "left"].map(|name| profile.at(name));
    Ok(Held {
        weights: weights.held,
        moments: step.held - weights.held - left.held,
        buffers: left.held,
        gradients: backward.held - backward.before,
        passes: backward.peak - step.held,
        optimizer: step.peak - step.held,
        process: of_process("VmHWM:").zip(before).map(|(peak, before)| peak - before),
    })
}

/// What Linux says of this process under a name, in bytes.
fn of_process(name: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

/// In a process of its own, which has no buffers of the arms before.
fn in_child(arm: usize) -> Result<Held> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["--arm", &arm.to_string()]).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} has failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The peak of a process of PyTorch that trains the same model, less what it holds before there is one, in bytes.
fn of_torch(python: &Path, dtype: &str) -> Result<usize> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/cpu_products.py");
    let Shape { layers, width, heads, context, batch, dropout, .. } = Size::Medium.shape();
    let sizes = [different_characters(), context, batch, layers, heads, width];
    let mut command = Command::new(python);
    command.args([script, "2", "lm", dtype]).args(sizes.map(|size| size.to_string()));
    command.arg(dropout.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut input = child.stdin.take().expect("piped");
    (0..STEPS).try_for_each(|_| writeln!(input))?;
    drop(input);
    let output = String::from_utf8(child.wait_with_output()?.stdout)?;
    let last = output.lines().last().context("PyTorch says nothing")?;
    last.trim().parse().with_context(|| format!("PyTorch says {last:?}, not its peak"))
}

/// What a row of the table is of.
#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    /// Of ours; PyTorch does not tell.
    held: Option<Held>,
    /// Bytes at the peak: of what is allocated; of PyTorch of its process, less what that held before the model.
    peak: usize,
    /// The same of our process.
    process: Option<usize>,
}

#[derive(Serialize)]
struct Results<'a> {
    origin: Origin,
    rows: &'a [Row],
}

fn main() -> ExitCode {
    examples_common::main(run)
}

fn run(Arguments { arm, json, picture: picture_to, python }: Arguments) -> Result<ExitCode> {
    if let Some(arm) = arm {
        print(&serde_json::to_string(&measure(arm)?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    [&json, &picture_to].into_iter().flatten().try_for_each(|path| check_place(path))?;
    let mut rows = vec![];
    for (arm, (precision, moments)) in ARMS.into_iter().enumerate() {
        let moments = if moments == Moments::Fp8 { ", moments in FP8" } else { "" };
        let held = in_child(arm)?;
        let (name, peak) = (format!("{precision}{moments}"), held.peak());
        rows.push(Row { name, peak, process: held.process, held: Some(held) });
    }
    for dtype in python.iter().flat_map(|_| ["f32", "bf16"]) {
        let peak = of_torch(python.as_deref().expect("given"), dtype)?;
        rows.push(Row { name: format!("PyTorch {dtype}"), held: None, peak, process: Some(peak) });
    }
    print(&table(&rows))?;
    let origin = Origin::here(
        "cargo run --release -p burn-fp8-bench --bin memory --",
        &["--json", "--picture", "--python"],
    );
    print(&format!("\nMiB; {origin}\n"))?;
    if let Some(path) = &picture_to {
        write(path, picture(&rows))?;
    }
    if let Some(path) = &json {
        write_json(path, &Results { origin, rows: &rows })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| training | peak | process |\n|---|---:|---:|\n");
    for Row { name, held, peak, process } in rows {
        let size =
            |size: Option<usize>| size.map_or("–".into(), |size| format!("{:.0}", mib(size)));
        let own = held.map(|_| *peak);
        text += &format!("| {name} | {} | {} |\n", size(own), size(*process));
    }
    text
}

/// A bar for each training, of what lasts and of what comes on top.
fn picture(rows: &[Row]) -> String {
    const KINDS: [&str; 5] =
        ["weights", "moments", "buffers", "saved, gradients", "the process of PyTorch"];
    let parts = |row: &Row| match &row.held {
        Some(held) => vec![held.weights, held.moments, held.buffers, held.on_top()],
        None => vec![0, 0, 0, 0, row.peak],
    };
    let rows: Vec<_> = rows.iter().map(|row| (row.name.clone(), parts(row))).collect();
    bars("Memory of a training step of char-lm medium", &KINDS, &rows)
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Deserialize)]
    struct Written {
        rows: Vec<Row>,
    }

    #[test]
    fn the_chapter_has_the_figures_and_the_picture_of_the_json_beside_it() {
        let path = |path: &str| format!("{}/../docs/{path}", env!("CARGO_MANIFEST_DIR"));
        let committed =
            |of: &str| fs::read_to_string(path(of)).unwrap_or_else(|error| panic!("{of}: {error}"));
        let Written { rows } = serde_json::from_str(&committed("figures/memory.json")).unwrap();
        if std::env::var_os("RENDER_FIGURES").is_some() {
            fs::write(path("figures/memory.svg"), picture(&rows)).unwrap();
        }
        assert_eq!(picture(&rows), committed("figures/memory.svg"));
        assert!(committed("optimizer-memory.md").contains(&table(&rows)), "{}", table(&rows));
    }
}
