//! Thousands of shapes: each dimension takes every value up to 70 and values around the edges of blocks. Then random shapes, layouts, formats and
//! batches.

use std::collections::BTreeSet;

use crate::common::{
    FORMATS, LAYOUTS, Layout, Operand, PAIRS, PLAIN, Random, Runner, Sums, exact, finite, integers,
};
use burn_fp8_cpu::{Codes, Epilogue, Output};
use proptest::prelude::*;

const SHAPES: usize = 5_000;

/// Multiplications of most products; of one in `LARGE`, enough that several threads share the work.
const WORK: usize = 100_000;
const LARGE: usize = 50;
const LARGE_WORK: usize = 4_000_000;

/// AMX emulated computes one product in as many, and none that is larger.
const SIMULATED: usize = 8;
const SIMULATED_WORK: usize = 70_000;

/// Every value up to 70, and around multiples of 14 and 32, the rows and columns of panels, and of 256, the blocks of all units.
fn values() -> Vec<usize> {
    let mut values = BTreeSet::from_iter(1..=70);
    for k in 1..=19 {
        values.extend([14 * k - 1, 14 * k, 14 * k + 1]);
    }
    for k in 1..=9 {
        values.extend([32 * k - 1, 32 * k, 32 * k + 1]);
    }
    values.extend([255, 256, 257, 511, 512, 513, 1023, 1024, 1025]);
    values.into_iter().collect()
}

/// Shapes `[M, N, K]`: one dimension goes through all values, the others are drawn so that the product stays small.
fn shapes() -> Vec<[usize; 3]> {
    let values = values();
    let mut random = Random(0xF8);
    (0..SHAPES)
        .map(|index| {
            let first = index % 3;
            let large = index % LARGE == 0;
            let mut left = if large { LARGE_WORK } else { WORK };
            let mut shape = [0; 3];
            for dimension in
                [first, (first + 1 + index / 3 % 2) % 3, (first + 2 - index / 3 % 2) % 3]
            {
                let fitting = values.partition_point(|value| *value <= left);
                shape[dimension] = match dimension == first {
                    true => values[index / 3 % values.len()],
                    // Of a large product the larger half.
                    false if large => values[fitting / 2 + random.below(fitting.div_ceil(2))],
                    false => values[random.below(fitting)],
                };
                left /= shape[dimension];
            }
            shape
        })
        .collect()
}

#[test]
fn products_of_all_shapes_are_within_the_roundings_of_f32() {
    let units = Runner::units();
    let mut random = Random(7);
    let mut seen: [BTreeSet<usize>; 3] = Default::default();
    let mut work = 0;
    for (index, [m, n, k]) in shapes().into_iter().enumerate() {
        [m, n, k].into_iter().zip(&mut seen).for_each(|(value, seen)| _ = seen.insert(value));
        work += m * n * k;
        let [left, right] = random.pick(&PAIRS);
        let (lhs_layout, rhs_layout) = (random.pick(&LAYOUTS), random.pick(&LAYOUTS));
        let lhs = Operand::random(&mut random, &finite(left), left, [m, k], lhs_layout);
        let rhs = Operand::random(&mut random, &finite(right), right, [k, n], rhs_layout);
        let expected = exact(&lhs, &rhs);
        let scales: [f32; 2] = [0.37, 1.9];
        let mut runners = units.clone();
        if index % SIMULATED == 0 && m * n * k <= SIMULATED_WORK {
            runners.extend(Runner::emulated());
        }
        for runner in runners {
            let y = runner.product(&lhs, &rhs, &Epilogue::scaled(scales[0], scales[1]));
            let scale = f64::from(scales[0]) * f64::from(scales[1]);
            if let Some(error) = expected.clone().times(scale).mismatch(&y, Sums::Nearest) {
                let (left, right) = ((left, lhs_layout), (right, rhs_layout));
                panic!("{runner:?} {m}×{n}×{k} {left:?} {right:?}: {error}");
            }
        }
    }
    println!("{SHAPES} shapes, {:.2} billion multiplications", work as f64 / 1e9);
    for (name, seen) in ["M", "N", "K"].into_iter().zip(seen) {
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), values(), "{name} takes every value");
    }
}

/// All of M × N × K for the shapes of one panel and a little more.
#[test]
fn products_of_all_small_shapes_are_exact() {
    let [left, right] = PAIRS[1];
    let mut random = Random(8);
    let (a, b) = (random.picks(&integers(left), 9000), random.picks(&integers(right), 9000));
    let runners = Runner::all();
    for m in (1..=16).chain([28, 29, 33]) {
        for n in [1, 2, 15, 16, 17, 31, 32, 33, 65] {
            for k in [1, 2, 3, 31, 32, 33, 63, 64, 65, 97] {
                let lhs = Operand::new(a[m..][..m * k].to_vec(), left, [m, k], Layout::Rows);
                let rhs = Operand::new(b[n..][..k * n].to_vec(), right, [k, n], Layout::Rows);
                let expected = exact(&lhs, &rhs);
                for runner in &runners {
                    if !matches!(runner, Runner::Unit(_)) && (m + n + k) % 3 != 0 {
                        continue;
                    }
                    let y = runner.product(&lhs, &rhs, &PLAIN);
                    assert_eq!(expected.inexact(&y), None, "{runner:?} {m}×{n}×{k}");
                }
            }
        }
    }
}

/// The bound is narrow enough to see a product that lacks one of 1025 terms.
#[test]
fn the_bound_notices_a_missing_term() {
    let [left, right] = PAIRS[0];
    let ordinary = |format| crate::common::codes_where(format, |x| (0.5..=2.0).contains(&x.abs()));
    let mut random = Random(9);
    let lhs = Operand::random(&mut random, &ordinary(left), left, [3, 1025], Layout::Rows);
    let rhs = Operand::random(&mut random, &ordinary(right), right, [1025, 5], Layout::Rows);
    let expected = exact(&lhs, &rhs);
    for missing in [0, 31, 512, 1023, 1024] {
        let mut codes = lhs.codes.clone();
        codes[1025 + missing] = 0;
        let lhs = Operand::new(codes, left, [3, 1025], Layout::Rows);
        for runner in Runner::units() {
            let y = runner.product(&lhs, &rhs, &PLAIN);
            let error = expected.mismatch(&y, Sums::Nearest).expect("a term is missing");
            let at = error[1..].split(']').next().expect("a place").parse::<usize>();
            assert!(at.is_ok_and(|at| at / 5 == 1), "{runner:?}: {error}");
        }
    }
}

/// How often an operand is there: as one matrix, as one that is broadcast, or as a batch.
#[derive(Clone, Copy, Debug)]
enum Times {
    Broadcast,
    Batch,
}

/// What an operand is besides its elements.
#[derive(Clone, Copy, Debug)]
struct Kind {
    format: usize,
    layout: usize,
    gap: usize,
    times: Times,
}

fn kind() -> impl Strategy<Value = Kind> {
    let times = prop_oneof![Just(Times::Broadcast), Just(Times::Batch)];
    (0..FORMATS.len(), 0..LAYOUTS.len(), 0usize..80, times)
        .prop_map(|(format, layout, gap, times)| Kind { format, layout, gap, times })
}

fn operand(random: &mut Random, kind: Kind, batch: usize, shape: [usize; 2]) -> Operand {
    let format = FORMATS[kind.format];
    let layout = match LAYOUTS[kind.layout] {
        Layout::Strided(_) => Layout::Strided(kind.gap),
        Layout::StridedTransposed(_) => Layout::StridedTransposed(kind.gap),
        layout => layout,
    };
    let [rows, columns] = shape;
    let mut codes = |matrices| random.picks(&finite(format), matrices * rows * columns);
    match kind.times {
        Times::Broadcast => Operand::new(codes(1), format, shape, layout).broadcast(batch),
        // A batch of several has no gaps.
        Times::Batch if batch > 1 => {
            let layout = LAYOUTS[kind.layout % 2];
            Operand::batch(codes(batch), format, batch, shape, layout)
        }
        Times::Batch => Operand::new(codes(1), format, shape, layout),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_are_within_the_roundings_of_f32(
        seed: u64,
        m in 1usize..80,
        n in 1usize..120,
        k in 1usize..300,
        batch in 1usize..4,
        left in kind(),
        right in kind(),
        lhs_scale in 0.01f32..100.0,
        rhs_scale in -10f32..10.0,
    ) {
        prop_assume!(rhs_scale.abs() > 1e-3);
        let mut random = Random(seed);
        let lhs = operand(&mut random, left, batch, [m, k]);
        let rhs = operand(&mut random, right, batch, [k, n]);
        prop_assert_eq!(lhs.view().shape(), [m, k]);
        prop_assert_eq!(rhs.view().shape(), [k, n]);
        let expected = exact(&lhs, &rhs);
        let runners = if batch * m * n * k < 200_000 { Runner::all() } else { Runner::units() };
        for runner in runners {
            let y = runner.product(&lhs, &rhs, &Epilogue::scaled(lhs_scale, rhs_scale));
            let scale = f64::from(lhs_scale) * f64::from(rhs_scale);
            prop_assert_eq!(expected.clone().times(scale).mismatch(&y, Sums::Nearest), None, "{:?}", runner);
        }
    }

    /// Transposing a product swaps its operands; integers leave no room for roundings.
    #[test]
    fn the_transpose_of_a_product_is_the_product_of_the_transposes(
        seed: u64,
        m in 1usize..50,
        n in 1usize..50,
        k in 1usize..150,
        format in 0..FORMATS.len(),
    ) {
        let format = FORMATS[format];
        let mut random = Random(seed);
        let a = random.picks(&integers(format), m * k);
        let b = random.picks(&integers(format), k * n);
        let lhs = Codes::rows(&a, format, [m, k]);
        let rhs = Codes::rows(&b, format, [k, n]);
        for runner in Runner::units() {
            let (mut y, mut z) = (vec![f32::NAN; m * n], vec![f32::NAN; n * m]);
            runner.run(lhs, rhs, &PLAIN, Output::F32(&mut y));
            let (left, right) = (rhs.transpose(), lhs.transpose());
            runner.run(left, right, &PLAIN, Output::F32(&mut z));
            for row in 0..m {
                for column in 0..n {
                    prop_assert_eq!(y[row * n + column], z[column * m + row], "{:?}", runner);
                }
            }
        }
    }
}
