//! What it costs to watch a model train: steps of the perceptron of the group `mlp` in an observatory, against the same steps
//! outside of one.

use burn_fp8::report::{Observatory, ObservatoryOptions};

use crate::harness::{Options, Row, Side, compare};
use crate::mlp;

/// The name of the group.
pub const GROUP: &str = "observatory";

/// Measures steps of which each one, one of ten and none is sampled, at each thread count.
pub fn run(options: &Options) -> Vec<Row> {
    let at = |threads: &usize| measure(*threads, options.repetitions);
    options.threads.iter().flat_map(at).collect()
}

fn measure(threads: usize, repetitions: usize) -> Vec<Row> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool of a few threads").install(|| {
        let cases = [
            ("a step, sampled", 1, 0),
            ("10 steps, one sampled", 10, 0),
            // Never reached: steps that are not sampled.
            ("10 steps, none sampled", u64::MAX, 1),
        ];
        cases.map(|(name, every, first)| watched(name, (every, first), threads, repetitions)).into()
    })
}

/// Compares steps of which every `every`-th is sampled, counted from `first`, with the same steps unwatched.
fn watched(name: &str, (every, first): (u64, u64), threads: usize, repetitions: usize) -> Row {
    let observatory = ObservatoryOptions::default().with_every(every).with_first_step(first);
    let observatory = Observatory::new(observatory).expect("valid options");
    let steps = every.min(10);
    let (mut step, mut plain_step) = (mlp::fp8_steps(), mlp::fp8_steps());
    let mut watched = || (0..steps).for_each(|_| observatory.step(&mut step));
    let mut plain = || (0..steps).for_each(|_| plain_step());
    let subject = Side { name, bytes: None, run: &mut watched };
    let reference = Side { name: "unwatched", bytes: None, run: &mut plain };
    let row = compare((GROUP, threads, None), subject, reference, repetitions);
    let (seen, sites) = (observatory.report().steps, observatory.report().sites.len());
    // The first run of the comparison is not timed, and sampled as well.
    let expected = if first == 0 { (repetitions as u64 + 1, 2) } else { (0, 0) };
    assert_eq!((seen, sites), expected, "{name}: steps sampled, and the sites of both layers");
    row
}
