//! What it costs to watch a model train: steps of the perceptron of the group `mlp` in an observatory, against the same steps
//! outside of one.

use burn_fp8::report::{Observatory, ObservatoryOptions};

use crate::harness::{Options, Side};
use crate::mlp;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "observatory";

/// Measures steps of which each one, one of ten and none is sampled, at each thread count.
pub fn run(options: &Options) -> Vec<Row> {
    let cases = [
        ("a step, sampled", 1, 0),
        ("10 steps, one sampled", 10, 0),
        // Never reached: steps that are not sampled.
        ("10 steps, none sampled", u64::MAX, 1),
    ];
    let watched = |threads| {
        cases.map(|(name, every, first)| watched(name, (every, first), threads, options)).into()
    };
    options.on_pools(watched)
}

/// Compares steps of which every `every`-th is sampled, counted from `first`, with the same steps unwatched.
fn watched(name: &str, (every, first): (u64, u64), threads: usize, options: &Options) -> Row {
    let sampled = ObservatoryOptions::default().with_every(every).with_first_step(first);
    let observatory = Observatory::new(sampled).expect("valid options");
    let steps = every.min(10);
    let (mut step, mut plain_step) = (mlp::fp8_steps(), mlp::fp8_steps());
    let mut watched = || (0..steps).for_each(|_| observatory.step(&mut step));
    let mut plain = || (0..steps).for_each(|_| plain_step());
    let (subject, reference) = (Side::new(name, &mut watched), Side::new("unwatched", &mut plain));
    let row = options.compare((GROUP, threads, None), subject, reference);
    let (seen, sites) = (observatory.report().steps, observatory.report().sites.len());
    // The first run of the comparison is not timed, and sampled as well.
    let expected = if first == 0 { (options.repetitions as u64 + 1, 2) } else { (0, 0) };
    assert_eq!((seen, sites), expected, "{name}: steps sampled, and the sites of both layers");
    row
}
