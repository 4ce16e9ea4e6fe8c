//! What the memory of a training holds, with what is saved and moments in f32 and in FP8: measured, and shown as a table.

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use char_lm::{Moments, Phase, Precision, Shape, Size, different_characters, training_steps};
use clap::Parser;
use examples_common::charts::{BLUE, INK, Rows, SKY_BLUE, VERMILION, text};
use examples_common::{Origin, check_place, print, write, write_json};
use peak_alloc::PeakAlloc;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// It counts for the whole program.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

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
    let before = of_process("VmRSS:");
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
    held.process = of_process("VmHWM:").zip(before).map(|(peak, before)| peak - before);
    Ok(held)
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
        write(path, picture(&rows)?)?;
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
fn picture(rows: &[Row]) -> Result<String> {
    const KINDS: [(&str, RGBColor); 5] = [
        ("weights", INK),
        ("moments", BLUE),
        ("buffers", SKY_BLUE),
        ("saved, gradients", VERMILION),
        ("the process of PyTorch", RGBColor(150, 150, 150)),
    ];
    let largest = rows.iter().map(|row| mib(row.peak)).fold(0.0, f64::max);
    let bars = Rows {
        title: "Memory of a training step of char-lm medium".into(),
        names: rows.iter().map(|row| row.name.clone()).collect(),
        name_width: 260,
        height: 34,
        range: 0.0..largest * 1.7,
        axis: "MiB at the peak",
        number: |number| format!("{number:.0}"),
    };
    bars.svg("the memory of a training", |chart| {
        for (at, (kind, colour)) in KINDS.into_iter().enumerate() {
            let bar = |(index, row): (usize, &Row)| {
                let parts = match &row.held {
                    Some(held) => [held.weights, held.moments, held.buffers, held.on_top(), 0],
                    None => [0, 0, 0, 0, row.peak],
                };
                let start = mib(parts[..at].iter().sum());
                let middle = bars.middle(index);
                let corners = [(start, middle - 0.3), (start + mib(parts[at]), middle + 0.3)];
                Rectangle::new(corners, colour.filled())
            };
            chart.draw_series(rows.iter().enumerate().map(bar))?;
            // Right of the longest bar.
            let (x, y) = (largest * 1.15, bars.middle(at));
            let corners = [(x, y - 0.15), (x + largest * 0.03, y + 0.15)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            chart.draw_series([Text::new(kind, (x + largest * 0.05, y + 0.2), text(14))])?;
        }
        let sizes = rows.iter().enumerate().map(|(index, row)| {
            let place = (mib(row.peak) + largest * 0.01, bars.middle(index) + 0.2);
            Text::new(format!("{:.0}", mib(row.peak)), place, text(14))
        });
        chart.draw_series(sizes)?;
        Ok(())
    })
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
        let committed = |path: &str| {
            let path = format!("{}/../docs/{path}", env!("CARGO_MANIFEST_DIR"));
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let Written { rows } = serde_json::from_str(&committed("figures/memory.json")).unwrap();
        assert_eq!(picture(&rows).unwrap(), committed("figures/memory.svg"));
        assert!(committed("optimizer-memory.md").contains(&table(&rows)), "{}", table(&rows));
    }
}
