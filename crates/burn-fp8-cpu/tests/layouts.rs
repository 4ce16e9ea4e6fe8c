//! Random shapes, layouts, formats and batches, against the bound of f32 sums.

mod common;

use burn_fp8_cpu::Epilogue;
use common::reference::Reference;
use common::{FORMATS, LAYOUTS, Layout, Operand, Random, Runner, finite};
use proptest::prelude::*;

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
    let mut codes = |matrices| random.codes(&finite(format), matrices * rows * columns);
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
        let expected = Reference::new(&lhs, &rhs);
        let runners = if batch * m * n * k < 200_000 { Runner::all() } else { Runner::units() };
        for runner in runners {
            let y = runner.product(&lhs, &rhs, &Epilogue::scaled(lhs_scale, rhs_scale));
            let scale = f64::from(lhs_scale) * f64::from(rhs_scale);
            prop_assert_eq!(expected.mismatch(&y, scale), None, "{:?}", runner);
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
        let a = random.codes(&common::integers(format), m * k);
        let b = random.codes(&common::integers(format), k * n);
        let lhs = burn_fp8_cpu::Codes::rows(&a, format, [m, k]);
        let rhs = burn_fp8_cpu::Codes::rows(&b, format, [k, n]);
        for runner in Runner::units() {
            let (mut y, mut z) = (vec![f32::NAN; m * n], vec![f32::NAN; n * m]);
            runner.run(lhs, rhs, &common::PLAIN, burn_fp8_cpu::Output::F32(&mut y));
            let (left, right) = (rhs.transpose(), lhs.transpose());
            runner.run(left, right, &common::PLAIN, burn_fp8_cpu::Output::F32(&mut z));
            for row in 0..m {
                for column in 0..n {
                    prop_assert_eq!(y[row * n + column], z[column * m + row], "{:?}", runner);
                }
            }
        }
    }
}
