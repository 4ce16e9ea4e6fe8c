//! What other libraries need for the same quantize and dequantize, by a Python script run alongside.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::harness::Options;
use crate::rows::Row;
use crate::slices;

/// The name of this group.
pub const GROUP: &str = "peers";

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/cpu_peers.py");

/// What the script prints: one JSON object.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Peer>,
    absent: Vec<String>,
}

#[derive(Deserialize)]
struct Peer {
    name: String,
    milliseconds: f64,
}

/// Measures the peers, and `quantize_dequantize` before and after them, at every number of threads.
///
/// # Errors
/// A message, where the script cannot be run, fails, or prints something else than its report.
pub fn run(options: &Options, python: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &threads in &options.threads {
        let (before, bytes) = slices::quantize_dequantize_seconds(options, threads);
        let report = report(options, threads, python)?;
        let (after, _) = slices::quantize_dequantize_seconds(options, threads);
        let time = f64::midpoint(before, after);
        for name in &report.absent {
            eprintln!("{name}: not measured, {} cannot import it", python.display());
        }
        rows.extend(report.rows.into_iter().map(|peer| Row {
            gigabytes_per_second: Some(bytes as f64 / time / 1e9),
            ..Row::timed(
                (GROUP, threads, None),
                ("quantize_dequantize", time * 1e3),
                (&peer.name, peer.milliseconds),
            )
        }));
    }
    Ok(rows)
}

/// Runs the script at one number of threads.
fn report(options: &Options, threads: usize, python: &Path) -> Result<Report> {
    let name = format!("{} {SCRIPT}", python.display());
    let output = Command::new(python)
        .arg(SCRIPT)
        .args([options.elements, threads, options.repetitions].map(|n| n.to_string()))
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(output.status.success(), "{name} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{name} printed no report"))
}
