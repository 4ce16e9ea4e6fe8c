//! Measuring two things back to back.

use std::path::PathBuf;
use std::time::Instant;

pub use crate::rows::{Row, median, table};

/// What a run measures.
pub struct Options {
    /// Thread counts, each measured on a rayon pool of its own.
    pub threads: Vec<usize>,
    /// Elements per slice.
    pub elements: usize,
    /// Repetitions, of which medians are reported.
    pub repetitions: usize,
    /// The Python that runs peers, where they are measured.
    pub python: Option<PathBuf>,
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
        teraflops_per_second: None,
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
