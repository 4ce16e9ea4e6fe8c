//! Measuring two things back to back, and printing what came out.

use std::time::Instant;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;

/// What a run measures.
pub struct Options {
    /// Thread counts, each measured on a rayon pool of its own.
    pub threads: Vec<usize>,
    /// Elements per slice.
    pub elements: usize,
    /// Repetitions, of which medians are reported.
    pub repetitions: usize,
}

/// One measurement beside its reference.
#[derive(Clone, Debug, Serialize)]
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
    /// What it was measured against.
    pub reference: String,
    /// Median time of one run of the reference.
    pub reference_milliseconds: f64,
    /// Median over repetitions of speed over the reference's speed: bytes a second where both count bytes, else runs a second.
    pub ratio: f64,
    /// The least ratio wanted, if any.
    pub target: Option<f64>,
}

impl Row {
    /// Whether there is a target and the ratio is below it.
    pub fn misses_target(&self) -> bool {
        self.target.is_some_and(|target| self.ratio < target)
    }
}

/// One side of a comparison.
pub struct Side<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Bytes that one run reads and writes, as the algorithm needs them: without cache lines fetched only to be overwritten.
    /// `None` on both sides where runs are the measure.
    pub bytes: Option<usize>,
    /// One run.
    pub run: &'a mut dyn FnMut(),
}

/// Measures `subject` and `reference` alternately, so that what disturbs the machine disturbs both.
pub fn compare(
    (group, threads, target): (&str, usize, Option<f64>),
    subject: Side<'_>,
    reference: Side<'_>,
    repetitions: usize,
) -> Row {
    // The first run of each faults pages in and warms caches.
    (subject.run)();
    (reference.run)();
    let (mut times, mut reference_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let time = seconds(subject.run);
        let reference_time = seconds(reference.run);
        let work = |side: &Side<'_>| side.bytes.map_or(1.0, |bytes| bytes as f64);
        ratios.push(work(&subject) / time / (work(&reference) / reference_time));
        times.push(time);
        reference_times.push(reference_time);
    }
    let time = median(&mut times);
    Row {
        group: group.to_owned(),
        name: subject.name.to_owned(),
        threads,
        milliseconds: time * 1e3,
        gigabytes_per_second: subject.bytes.map(|bytes| bytes as f64 / time / 1e9),
        reference: reference.name.to_owned(),
        reference_milliseconds: median(&mut reference_times) * 1e3,
        ratio: median(&mut ratios),
        target,
    }
}

/// The time of one run, in seconds.
pub fn seconds(run: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// The median of at least one number; the upper of two in the middle.
pub fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "group",
        "name",
        "threads",
        "ms",
        "GB/s",
        "reference",
        "reference ms",
        "ratio",
        "target",
    ]);
    for row in rows {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(&row.group),
            Cell::new(&row.name),
            right(row.threads.to_string()),
            right(format!("{:.2}", row.milliseconds)),
            right(row.gigabytes_per_second.map_or_else(String::new, |speed| format!("{speed:.1}"))),
            Cell::new(&row.reference),
            right(format!("{:.2}", row.reference_milliseconds)),
            right(format!("{:.2}", row.ratio)),
            right(row.target.map_or_else(String::new, |target| {
                format!("≥ {target:.2} {}", if row.misses_target() { "MISSED" } else { "ok" })
            })),
        ]);
    }
    table
}
