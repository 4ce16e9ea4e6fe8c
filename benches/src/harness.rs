//! Measuring two things back to back.

use std::path::PathBuf;
use std::time::Instant;

use crate::rows::{Measured, Row};

/// What a run measures.
pub struct Options {
    /// Thread counts, each measured on a rayon pool of its own.
    pub threads: Vec<usize>,
    /// Elements per slice.
    pub elements: usize,
    /// Repetitions, of which medians are reported.
    pub repetitions: usize,
    /// The folder of the model that the group `generate` measures.
    pub model: Option<PathBuf>,
    /// The Python that runs peers, where they are measured.
    pub python: Option<PathBuf>,
}

impl Options {
    /// What is measured at each number of threads, on a pool of so many.
    pub fn on_pools(&self, measure: impl Fn(usize) -> Vec<Row> + Sync) -> Vec<Row> {
        let on_pool = |threads: &usize| pool(*threads).install(|| measure(*threads));
        self.threads.iter().flat_map(on_pool).collect()
    }

    /// Measures `subject` and `reference` alternately, so that what disturbs the machine disturbs both: as a row of a group, at so many
    /// threads, with the least ratio wanted.
    pub fn compare(
        &self,
        row: (&str, usize, Option<f64>),
        mut subject: Side<'_>,
        mut reference: Side<'_>,
    ) -> Row {
        // The first run of each faults pages in and warms caches.
        subject.seconds();
        reference.seconds();
        let (mut times, mut reference_times) = (vec![], vec![]);
        for _ in 0..self.repetitions {
            times.push(subject.seconds());
            reference_times.push(reference.seconds());
        }
        let measured = |name, bytes, seconds| Measured { name, bytes, flops: None, seconds };
        let subject = measured(subject.name, subject.bytes, times);
        Row::new(row, &subject, &measured(reference.name, reference.bytes, reference_times))
    }
}

/// One side of a comparison.
pub struct Side<'a> {
    name: &'a str,
    bytes: Option<usize>,
    run: &'a mut dyn FnMut(),
    before: Option<&'a mut dyn FnMut()>,
}

impl<'a> Side<'a> {
    /// Something that is called so, of which one call is a run.
    pub fn new(name: &'a str, run: &'a mut dyn FnMut()) -> Self {
        Self { name, bytes: None, run, before: None }
    }

    /// The same, with something before each run that is not measured.
    pub fn prepared(self, before: &'a mut dyn FnMut()) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The same, measured by the bytes that a run reads and writes.
    pub fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    fn seconds(&mut self) -> f64 {
        if let Some(before) = &mut self.before {
            before();
        }
        let start = Instant::now();
        (self.run)();
        start.elapsed().as_secs_f64()
    }
}

/// A pool of so many threads.
pub fn pool(threads: usize) -> rayon::ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("threads can be started")
}
