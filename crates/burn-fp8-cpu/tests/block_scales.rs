//! Blocks with scales in f32: products of what they stand for.

mod common;

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cpu::{BlockScales, Codes, Epilogue, Output, Powers, Unit};
use common::reference::Reference;
use common::{LAYOUTS, Operand, PAIRS, PLAIN, Random, Runner, codes_where, finite};

/// Ragged in every dimension; several blocks of K of a unit, parts of blocks of scales, and several of these.
const SHAPES: [[usize; 3]; 7] = [
    [1, 1, 1],
    [3, 5, 31],
    [33, 31, 129],
    [15, 70, 256],
    [130, 33, 300],
    [2, 130, 1100],
    [70, 3, 1100],
];

/// Elements of blocks along K, and across it in both operands.
const BLOCKS: [[usize; 3]; 6] =
    [[128, 1, 128], [128, 128, 1], [32, 1, 1], [96, 5, 7], [512, 1, 64], [4096, 1, 1]];

struct Scaled {
    operand: Operand,
    block: [usize; 2],
    scales: Vec<f32>,
}

impl Scaled {
    fn new(operand: Operand, block: [usize; 2], mut scale: impl FnMut() -> f32) -> Self {
        let count: usize = [0, 1].map(|i| operand.shape[i].div_ceil(block[i])).iter().product();
        Self { operand, block, scales: (0..count).map(|_| scale()).collect() }
    }

    fn view(&self) -> Codes<'_> {
        self.operand.view().with_scales(BlockScales { scales: &self.scales, block: self.block })
    }

    /// The scales of the transpose, row by row.
    fn transposed(&self) -> Vec<f32> {
        let across = self.operand.shape[1].div_ceil(self.block[1]);
        (0..across)
            .flat_map(|column| self.scales.iter().skip(column).step_by(across).copied())
            .collect()
    }

    /// What the elements stand for: exact in f64.
    fn numbers(&self) -> Vec<f64> {
        let ([height, width], columns) = (self.block, self.operand.shape[1]);
        let across = columns.div_ceil(width);
        let scale = |index: usize| {
            f64::from(self.scales[index / columns / height * across + index % columns / width])
        };
        let numbers = self.operand.numbers(0);
        numbers.iter().enumerate().map(|(index, x)| x * scale(index)).collect()
    }
}

fn for_each_case(
    seed: u64,
    codes: impl Fn(burn_fp8_core::Fp8Format) -> Vec<u8>,
    mut scale: impl FnMut(&mut Random) -> f32,
    mut each: impl FnMut(&Scaled, &Scaled, &str),
) {
    let mut random = Random(seed);
    for (index, [m, n, k]) in SHAPES.into_iter().enumerate() {
        for (which, [along, of_lhs, of_rhs]) in BLOCKS.into_iter().enumerate() {
            let formats = PAIRS[(index + which) % 4];
            let layouts = [LAYOUTS[(index + which / 2) % 4], LAYOUTS[which % 4]];
            let mut draw = |which: usize, shape: [usize; 2], block| {
                let format = formats[which];
                let codes = random.codes(&codes(format), shape[0] * shape[1]);
                let operand = Operand::new(codes, format, shape, layouts[which]);
                Scaled::new(operand, block, || scale(&mut random))
            };
            let lhs = draw(0, [m, k], [of_lhs, along]);
            let rhs = draw(1, [k, n], [along, of_rhs]);
            each(
                &lhs,
                &rhs,
                &format!("{m}×{n}×{k} {formats:?} {layouts:?} {along} {of_lhs} {of_rhs}"),
            );
        }
    }
}

fn product(runner: Runner, lhs: Codes<'_>, rhs: Codes<'_>, epilogue: &Epilogue<'_>) -> Vec<f32> {
    let mut y = vec![-1.25e-33; lhs.shape()[0] * rhs.shape()[1]];
    runner.run(lhs, rhs, epilogue, Output::F32(&mut y));
    y
}

fn reference(lhs: &Scaled, rhs: &Scaled) -> Reference {
    let ([m, k], n) = (lhs.operand.shape, rhs.operand.shape[1]);
    // The product of scales, the sum times it, and, where operands are scaled before, their product.
    Reference::of_numbers(&lhs.numbers(), &rhs.numbers(), [m, n, k]).with_roundings(4)
}

/// Integers and scales of few bits: an f32 holds every sum.
#[test]
fn small_integers_in_blocks_are_multiplied_exactly() {
    let codes = |format| codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 4.0);
    for_each_case(
        1,
        codes,
        |random| [0.75, 1.0, 1.25, 3.0][random.below(4)],
        |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for runner in Runner::all() {
                let y = product(runner, lhs.view(), rhs.view(), &PLAIN);
                assert_eq!(expected.inexact(&y, 1.0), None, "{runner:?} {what}");
                // Given to the transpose.
                let (scales, [height, width]) = (lhs.transposed(), lhs.block);
                let scales = BlockScales { scales: &scales, block: [width, height] };
                let lhs = lhs.operand.view().transpose().with_scales(scales).transpose();
                let y = product(runner, lhs, rhs.view(), &Epilogue::scaled(2.0, 0.125));
                assert_eq!(expected.inexact(&y, 0.25), None, "{runner:?} {what}");
            }
        },
    );
}

/// Scales of all mantissas, over 50 binades.
#[test]
fn all_finite_codes_are_within_the_bound() {
    for_each_case(
        2,
        finite,
        |random| {
            (1.0 + random.below(1 << 23) as f32 / (1 << 23) as f32)
                * 2f32.powi(random.below(50) as i32 - 25)
        },
        |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for runner in Runner::all() {
                let y = product(runner, lhs.view(), rhs.view(), &PLAIN);
                assert_eq!(expected.mismatch(&y, 1.0), None, "{runner:?} {what}");
            }
        },
    );
}

/// The product of both scales is no f32, that of all three factors is.
#[test]
fn scales_whose_product_is_too_small_or_too_large_are_applied_one_by_one() {
    // 448 · 448 · 64 terms, and 2^-9 · 2^-9.
    for (code, number, scales, count) in [
        (0x7E, 448.0f64, [2f32.powi(-100), 2f32.powi(-40)], 64),
        (0x01, 2f64.powi(-9), [2f32.powi(90), 2f32.powi(50)], 1),
    ] {
        let expected = number * number * f64::from(scales[0]) * f64::from(scales[1]) * count as f64;
        let codes = vec![code; 40 * count];
        let (of_lhs, of_rhs) = ([scales[0]; 40], [scales[1]; 40]);
        let block = [1, 64];
        let lhs = Codes::rows(&codes, E4M3, [40, count])
            .with_scales(BlockScales { scales: &of_lhs, block });
        let rhs = Codes::rows(&codes, E4M3, [40, count])
            .with_scales(BlockScales { scales: &of_rhs, block });
        for runner in Runner::units() {
            let y = product(runner, lhs, rhs.transpose(), &PLAIN);
            assert!(
                y.iter().all(|y| (f64::from(*y) / expected - 1.0).abs() < 1e-6),
                "{runner:?} {} {expected:e}",
                y[0]
            );
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mut random = Random(3);
    let [m, n, k] = [200, 300, 700];
    let mut draw = |shape: [usize; 2], block, layout| {
        let operand = Operand::random(&mut random, &finite(E4M3), E4M3, shape, layout);
        let mut seed = 1.0f32;
        Scaled::new(operand, block, || {
            seed = seed * 1.7 % 3.1 + 0.01;
            seed
        })
    };
    let (lhs, rhs) = (draw([m, k], [1, 128], LAYOUTS[0]), draw([k, n], [128, 128], LAYOUTS[1]));
    for runner in Runner::units() {
        let on = |threads| {
            let pool =
                rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| product(runner, lhs.view(), rhs.view(), &PLAIN))
        };
        let one = on(1);
        let same = |y: Vec<f32>| y.iter().zip(&one).all(|(a, b)| a.to_bits() == b.to_bits());
        // The crate gemm may sum in another order.
        if matches!(runner, Runner::Unit(Unit::Portable)) {
            continue;
        }
        assert!(same(on(2)) && same(on(3)), "{runner:?}");
    }
}

#[test]
fn empty_matrices_have_no_scales() {
    for runner in Runner::all() {
        for [m, n, k] in [[0, 3, 40], [3, 0, 40], [2, 3, 0]] {
            let (a, b) = (vec![0x38; m * k], vec![0x38; k * n]);
            let (rows, columns) = (vec![1.0; m * k.div_ceil(32)], vec![1.0; k.div_ceil(32) * n]);
            let lhs = Codes::rows(&a, E4M3, [m, k])
                .with_scales(BlockScales { scales: &rows, block: [1, 32] });
            let rhs = Codes::rows(&b, E4M3, [k, n])
                .with_scales(BlockScales { scales: &columns, block: [32, 1] });
            let y = product(runner, lhs, rhs, &PLAIN);
            assert!(y.iter().all(|y| *y == 0.0));
        }
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let codes = [0x38; 64 * 64];
    let scales = [1.0; 64 * 64];
    let matrix = || Codes::rows(&codes, E4M3, [64, 64]);
    let with = |block: [usize; 2]| {
        let count: usize = block.map(|size| 64usize.div_ceil(size)).iter().product();
        matrix().with_scales(BlockScales { scales: &scales[..count], block })
    };
    let refused = |f: &dyn Fn(), words: &str| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("refused");
        let message = match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic.downcast::<&str>().expect("words").to_string(),
        };
        assert!(message.contains(words), "{message}");
    };
    let multiply = |lhs: Codes<'_>, rhs: Codes<'_>| {
        product(Runner::units()[0], lhs, rhs, &PLAIN);
    };
    refused(&|| multiply(with([1, 32]), matrix()), "one operand has scales of blocks");
    refused(&|| multiply(matrix(), with([32, 1])), "one operand has scales of blocks");
    refused(
        &|| multiply(with([1, 32]), with([64, 1])),
        "32 elements along K in the left operand and 64 in the right",
    );
    refused(&|| multiply(with([1, 16]), with([16, 1])), "no multiple of 32");
    let block = [1, 32];
    refused(
        &|| _ = matrix().with_scales(BlockScales { scales: &scales[..5], block }),
        "5 scales for 64 × 2 blocks",
    );
    let exponents = [0; 128];
    let powers = matrix().with_powers(Powers { exponents: &exponents, block });
    refused(&|| multiply(powers, with([32, 1])), "one operand has scales of blocks");
    refused(&|| _ = with([1, 32]).starting_at(&[0]), "powers or scales does not begin anew");
}
