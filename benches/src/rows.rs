//! Measurements beside their references, and how they are printed.

use comfy_table::{Cell, CellAlignment, Table};
use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics};

/// One measurement beside its reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The group of benchmarks.
    pub group: String,
    /// What was measured.
    pub name: String,
    /// Threads that both ran on.
    pub threads: usize,
    /// Median time of one run.
    pub milliseconds: f64,
    /// Bytes read and written over the median time, in 10^9 bytes a second; none where bytes are not the measure.
    pub gigabytes_per_second: Option<f64>,
    /// Floating-point operations over the median time, in 10^12 a second; none where they are not the measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teraflops_per_second: Option<f64>,
    /// What it was measured against.
    pub reference: String,
    /// Median time of one run of the reference.
    pub reference_milliseconds: f64,
    /// Median over repetitions of speed over the reference's speed: bytes a second where both count bytes, else runs a second.
    pub ratio: f64,
    /// The least ratio wanted, if any.
    pub target: Option<f64>,
}

/// One side of a comparison, and how long its runs took.
pub struct Measured<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Bytes that one run reads and writes, as the algorithm needs them: without cache lines fetched only to be overwritten.
    /// `None` on both sides where runs are the measure.
    pub bytes: Option<usize>,
    /// Floating-point operations of one run, where they are to be told.
    pub flops: Option<f64>,
    /// The time of each run.
    pub seconds: Vec<f64>,
}

impl Measured<'_> {
    fn median(&self) -> f64 {
        median(&mut self.seconds.clone())
    }

    /// Bytes a second, or runs a second, of each run.
    fn speeds(&self) -> impl Iterator<Item = f64> {
        let work = self.bytes.map_or(1.0, |bytes| bytes as f64);
        self.seconds.iter().map(move |seconds| work / seconds)
    }
}

impl Row {
    /// What was measured in turns with its reference.
    pub fn new(row: (&str, usize, Option<f64>), subject: &Measured, reference: &Measured) -> Self {
        let seconds = subject.median();
        let ratios = subject.speeds().zip(reference.speeds()).map(|(ours, theirs)| ours / theirs);
        Self {
            gigabytes_per_second: subject.bytes.map(|bytes| bytes as f64 / seconds / 1e9),
            teraflops_per_second: subject.flops.map(|flops| flops / seconds / 1e12),
            ratio: median(&mut ratios.collect::<Vec<_>>()),
            ..Self::timed(
                row,
                (subject.name, seconds * 1e3),
                (reference.name, reference.median() * 1e3),
            )
        }
    }

    /// Of a time in milliseconds alone, beside something that took so long.
    pub fn timed(
        (group, threads, target): (&str, usize, Option<f64>),
        (name, milliseconds): (&str, f64),
        (reference, reference_milliseconds): (&str, f64),
    ) -> Self {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            threads,
            milliseconds,
            gigabytes_per_second: None,
            teraflops_per_second: None,
            reference: reference.to_owned(),
            reference_milliseconds,
            ratio: reference_milliseconds / milliseconds,
            target,
        }
    }

    /// Whether there is a target and the ratio is below it.
    fn misses_target(&self) -> bool {
        self.target.is_some_and(|target| self.ratio < target)
    }
}

/// Whether no row is below its target; says on stderr how many are.
pub fn reach_their_targets(rows: &[Row]) -> bool {
    let missed = rows.iter().filter(|row| row.misses_target()).count();
    if missed > 0 {
        eprintln!("{missed} of {} rows are below their target", rows.len());
    }
    missed == 0
}

/// The median of at least one number; may change their order.
pub fn median(numbers: &mut [f64]) -> f64 {
    Data::new(numbers).median()
}

/// The rows as a table in one of comfy-table's presets.
pub fn table(rows: &[Row], preset: &str) -> Table {
    // Only GPUs are measured by their arithmetic.
    let has_teraflops = rows.iter().any(|row| row.teraflops_per_second.is_some());
    let mut header = vec!["group", "name", "threads", "ms", "GB/s"];
    header.extend(has_teraflops.then_some("TFLOP/s"));
    // Rates of bytes and rates of runs are not one column: where function and reference move different bytes, they differ.
    header.extend(["reference", "reference ms", "relative GB/s", "relative speed", "target"]);
    let mut table = Table::new();
    table.load_preset(preset).set_header(header);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let speed =
        |speed: Option<f64>| right(speed.map_or_else(String::new, |speed| format!("{speed:.1}")));
    for row in rows {
        let (in_bytes, ratio) = (row.gigabytes_per_second.is_some(), format!("{:.2}", row.ratio));
        let mut cells = vec![
            Cell::new(&row.group),
            Cell::new(&row.name),
            right(row.threads.to_string()),
            right(milliseconds(row.milliseconds)),
            speed(row.gigabytes_per_second),
        ];
        cells.extend(has_teraflops.then(|| speed(row.teraflops_per_second)));
        cells.extend([
            Cell::new(&row.reference),
            right(milliseconds(row.reference_milliseconds)),
            right(if in_bytes { ratio.clone() } else { String::new() }),
            right(if in_bytes { String::new() } else { ratio }),
            right(row.target.map_or_else(String::new, |target| {
                format!("≥ {target:.2} {}", if row.misses_target() { "MISSED" } else { "ok" })
            })),
        ]);
        table.add_row(cells);
    }
    table
}

/// Two decimals, and more where a time is shorter than that.
fn milliseconds(time: f64) -> String {
    if time < 0.1 { format!("{time:.4}") } else { format!("{time:.2}") }
}
