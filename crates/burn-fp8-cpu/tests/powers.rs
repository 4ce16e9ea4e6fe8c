//! Blocks that are multiplied by powers of two: products of what they stand for.

mod common;

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_cpu::{Codes, Epilogue, Output, Powers, Unit, matmul};
use common::blocks::{Blocks, reference};
use common::reference::Reference;
use common::{
    FORMATS, LAYOUTS, Layout, Operand, PAIRS, PLAIN, Random, Runner, codes_where, finite, integers,
    number,
};

/// Ragged in every dimension, with one block of K of a unit, two, and three.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [3, 5, 31],
    [33, 31, 33],
    [15, 70, 127],
    [130, 33, 129],
    [29, 97, 600],
    [2, 130, 1100],
    [70, 3, 1100],
];

/// Blocks of a left operand. Those of a right one are their transposes.
const BLOCKS: [[usize; 2]; 8] =
    [[1, 32], [1, 128], [128, 128], [128, 32], [32, 32], [5, 64], [1, 1024], [33, 4096]];

fn product(runner: Runner, lhs: Codes<'_>, rhs: Codes<'_>, epilogue: &Epilogue<'_>) -> Vec<f32> {
    let mut y = vec![-1.25e-33; lhs.shape()[0] * rhs.shape()[1]];
    runner.run(lhs, rhs, epilogue, Output::F32(&mut y));
    y
}

/// Calls `each` with operands of all shapes, blocks and layouts, whose codes and exponents are drawn.
fn for_each_case(
    seed: u64,
    codes: impl Fn(Fp8Format) -> Vec<u8>,
    lowest: impl Fn(Fp8Format) -> i16,
    mut each: impl FnMut(&Blocks, &Blocks, &str),
) {
    let mut random = Random(seed);
    for (index, [m, n, k]) in SHAPES.into_iter().enumerate() {
        for (block, [height, width]) in BLOCKS.into_iter().enumerate() {
            let [left, right] = PAIRS[(index + block) % 4];
            let mut draw = |format, shape: [usize; 2], layout, block| {
                let codes = random.codes(&codes(format), shape[0] * shape[1]);
                let operand = Operand::new(codes, format, shape, layout);
                let count = 1 - lowest(format);
                Blocks::new(operand, block, || -(random.below(count as usize) as i16))
            };
            let layouts = [LAYOUTS[(index + block / 2) % 4], LAYOUTS[block % 4]];
            let lhs = draw(left, [m, k], layouts[0], [height, width]);
            // Another block than that of the left operand, every other time.
            let [height, width] = BLOCKS[(block + index % 2 * 3) % BLOCKS.len()];
            let rhs = draw(right, [k, n], layouts[1], [width, height]);
            let blocks = (lhs.block, rhs.block);
            each(&lhs, &rhs, &format!("{m}×{n}×{k} {left} {right} {layouts:?} {blocks:?}"));
        }
    }
}

/// 1100 products of up to 16, all multiples of 2^-8: an f32 holds every sum of them.
#[test]
fn small_integers_in_blocks_are_multiplied_exactly() {
    let codes = |format| codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 4.0);
    for_each_case(
        1,
        codes,
        |_| -4,
        |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for runner in Runner::all() {
                for (lhs, rhs) in lhs.views().into_iter().zip(rhs.views()) {
                    let y = product(runner, lhs, rhs, &PLAIN);
                    assert_eq!(expected.inexact(&y, 1.0), None, "{runner:?} {what}");
                }
            }
        },
    );
}

/// One operand with powers, the other without.
#[test]
fn either_operand_may_have_none() {
    let codes = |format| codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 4.0);
    for_each_case(
        2,
        codes,
        |_| -8,
        |lhs, rhs, what| {
            let (a, b) = (lhs.operand.numbers(0), rhs.operand.numbers(0));
            let ([m, k], n) = (lhs.operand.shape, rhs.operand.shape[1]);
            let left = Reference::of_numbers(&lhs.numbers(), &b, [m, n, k]);
            let right = Reference::of_numbers(&a, &rhs.numbers(), [m, n, k]);
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.operand.view(), &PLAIN);
                assert_eq!(left.inexact(&y, 1.0), None, "{runner:?} {what} left");
                let y = product(runner, lhs.operand.view(), rhs.views()[0], &PLAIN);
                assert_eq!(right.inexact(&y, 1.0), None, "{runner:?} {what} right");
            }
        },
    );
}

#[test]
fn all_finite_codes_and_low_exponents_are_within_the_bound() {
    for [left, right] in PAIRS {
        // As low as both may be: what the codes of the formats leave of 2^-126.
        let lowest = |format| if format == E4M3 { -54 } else { -47 };
        assert!(Powers::are_exact((left, lowest(left)), (right, lowest(right))));
    }
    for_each_case(
        3,
        finite,
        |format| if format == E4M3 { -54 } else { -47 },
        |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.views()[1], &PLAIN);
                assert_eq!(expected.mismatch(&y, 1.0), None, "{runner:?} {what}");
            }
        },
    );
}

/// NaN, and infinities of E5M2, in both operands, as in f64. Zeros stay zeros: 0 · ∞ is NaN.
#[test]
fn special_codes_stay_what_they_are() {
    let codes = |format| {
        let mut codes = codes_where(format, |x| x.is_finite() && x.abs() >= 1.0).repeat(40);
        codes.extend([0x00, 0x80, 0x7F, 0xFF]);
        if format == E5M2 {
            codes.extend([0x7C, 0xFC].repeat(4));
        }
        codes
    };
    let mut classes = [0; 3];
    for_each_case(
        4,
        codes,
        |_| -40,
        |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for sum in &expected.sums {
                classes[usize::from(sum.is_nan()) + 2 * usize::from(sum.is_infinite())] += 1;
            }
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.views()[0], &PLAIN);
                assert_eq!(expected.mismatch(&y, 1.0), None, "{runner:?} {what}");
            }
        },
    );
    assert!(classes.iter().all(|count| *count > 100), "{classes:?}");
}

/// Down to the lowest exponents, in either operand, times 1.
#[test]
fn every_code_times_every_power_is_exact() {
    for format in FORMATS {
        let lowest = Powers::lowest(format);
        let exponents: Vec<_> = (lowest..=0).collect();
        let all: Vec<u8> = (0..=255).collect();
        let codes = all.repeat(exponents.len());
        let count = codes.len();
        let expected: Vec<_> = (0..count)
            .map(|i| number(codes[i], format) * 2f64.powi(exponents[i / 256].into()))
            .collect();
        let same = |(y, x): (&f32, &f64)| f64::from(*y) == *x || y.is_nan() && x.is_nan();
        let ones = FORMATS.map(|format| codes_where(format, |x| x == 1.0));
        for runner in Runner::all() {
            for (one, of_one) in ones.iter().zip(FORMATS) {
                let one = Codes::rows(one, of_one, [1, 1]);
                let block = [256, 32];
                let lhs = Codes::rows(&codes, format, [count, 1]);
                let lhs = lhs.with_powers(Powers { exponents: &exponents, block });
                let y = product(runner, lhs, one, &PLAIN);
                assert!(y.iter().zip(&expected).all(same), "{runner:?} {format} left");
                let y = product(runner, one, lhs.transpose(), &PLAIN);
                assert!(y.iter().zip(&expected).all(same), "{runner:?} {format} right");
            }
        }
    }
}

/// The smallest codes times the lowest powers that are exact, as both have them or one alone.
#[test]
fn products_of_the_smallest_codes_are_exact_to_the_limit() {
    let smallest = |format| if format == E4M3 { -9 } else { -16 };
    for [left, right] in PAIRS {
        assert_eq!(Powers::lowest(left), -126 - smallest(left));
        let sum = -126 - smallest(left) - smallest(right);
        for lhs_exponent in sum..=0 {
            let rhs_exponent = sum - lhs_exponent;
            assert!(Powers::are_exact((left, lhs_exponent), (right, rhs_exponent)));
            assert!(!Powers::are_exact((left, lhs_exponent - 1), (right, rhs_exponent)));
            assert!(!Powers::are_exact((left, lhs_exponent), (right, rhs_exponent - 1)));
            // Differences of products, too: 3 · 2^-126 − 2 · 2^-126.
            let codes = [[3, 0x82], [1, 1]];
            let powers = [lhs_exponent, rhs_exponent].map(|exponent| [exponent]);
            let [a, b] = &powers;
            let lhs = Codes::rows(&codes[0], left, [1, 2]);
            let rhs = Codes::rows(&codes[1], right, [2, 1]);
            let lhs = lhs.with_powers(Powers { exponents: a, block: [1, 32] });
            let rhs = rhs.with_powers(Powers { exponents: b, block: [32, 1] });
            for runner in Runner::all() {
                let y = product(runner, lhs, rhs, &PLAIN);
                assert_eq!(y, [f32::MIN_POSITIVE], "{runner:?} {left} {right} {lhs_exponent}");
            }
        }
    }
}

/// Where there are more than few rows, whose products go another way without powers.
#[test]
fn exponents_of_zero_change_no_bit() {
    let mut random = Random(5);
    for [left, right] in PAIRS {
        for [m, n, k] in [[33, 70, 1100], [130, 31, 129], [64, 64, 64]] {
            let layouts = [random.pick(&LAYOUTS), random.pick(&LAYOUTS)];
            let lhs = Operand::random(&mut random, &finite(left), left, [m, k], layouts[0]);
            let rhs = Operand::random(&mut random, &finite(right), right, [k, n], layouts[1]);
            let lhs = Blocks::new(lhs, [1, 32], || 0);
            let rhs = Blocks::new(rhs, [128, 128], || 0);
            for runner in Runner::all() {
                let with = product(runner, lhs.views()[0], rhs.views()[0], &PLAIN);
                let without = runner.product(&lhs.operand, &rhs.operand, &PLAIN);
                let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits();
                assert!(with.iter().zip(&without).all(same), "{runner:?} {m}×{n}×{k}");
            }
        }
    }
}

/// Many tasks, whose panels begin within blocks; the largest exponents are folded into the scales.
#[test]
fn large_products_are_exact_on_any_number_of_threads() {
    let mut random = Random(6);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let codes = |format| codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 4.0);
    for [left, right] in PAIRS {
        let [m, n, k] = [300, 570, 1056];
        for (first, second) in [([1, 32], [32, 1]), ([1, 128], [128, 128]), ([100, 64], [512, 45])]
        {
            let layouts = [random.pick(&LAYOUTS), random.pick(&LAYOUTS)];
            let lhs = Operand::random(&mut random, &codes(left), left, [m, k], layouts[0]);
            let rhs = Operand::random(&mut random, &codes(right), right, [k, n], layouts[1]);
            let lhs = Blocks::new(lhs, first, || -(random.below(5) as i16));
            let rhs = Blocks::new(rhs, second, || -(random.below(5) as i16));
            let expected = reference(&lhs, &rhs);
            let epilogue = Epilogue::scaled(2f32.powi(-60), 2f32.powi(75));
            for runner in Runner::units() {
                let multiply = || product(runner, lhs.views()[0], rhs.views()[1], &epilogue);
                let what = format!("{runner:?} {left} {right} {layouts:?} {first:?} {second:?}");
                assert_eq!(expected.inexact(&multiply(), 32768.0), None, "{what}");
                assert_eq!(expected.inexact(&pool.install(multiply), 32768.0), None, "{what}");
            }
        }
    }
}

/// A weight with powers, multiplied by each matrix of a batch.
#[test]
fn a_matrix_with_powers_can_be_broadcast() {
    let mut random = Random(7);
    let ([m, n, k], batch) = ([17, 40, 96], 3);
    let codes = random.codes(&integers(E4M3), batch * m * k);
    let rhs = Operand::random(&mut random, &integers(E4M3), E4M3, [k, n], Layout::Transposed);
    let rhs = Blocks::new(rhs, [32, 1], || -(random.below(3) as i16));
    let lhs = Codes::batch(&codes, E4M3, batch, [m, k]);
    for runner in Runner::all() {
        let mut y = vec![f32::NAN; batch * m * n];
        let weight = rhs.views()[0].broadcast(batch);
        runner.run(lhs, weight, &PLAIN, Output::F32(&mut y));
        for (codes, y) in codes.chunks(m * k).zip(y.chunks(m * n)) {
            let lhs = Operand::new(codes.to_vec(), E4M3, [m, k], Layout::Rows);
            let expected = Reference::of_numbers(&lhs.numbers(0), &rhs.numbers(), [m, n, k]);
            assert_eq!(expected.inexact(y, 1.0), None, "{runner:?}");
        }
    }
}

#[test]
fn empty_matrices_have_powers_without_exponents() {
    for unit in Unit::available() {
        for [m, n, k] in [[0, 3, 40], [3, 0, 40], [2, 3, 0]] {
            let (a, b) = (vec![0x38; m * k], vec![0x38; k * n]);
            let (rows, columns) = (vec![0; m * k.div_ceil(32)], vec![0; k.div_ceil(32) * n]);
            let powers = Powers { exponents: &rows, block: [1, 32] };
            let lhs = Codes::rows(&a, E4M3, [m, k]).with_powers(powers);
            let powers = Powers { exponents: &columns, block: [32, 1] };
            let rhs = Codes::rows(&b, E4M3, [k, n]).with_powers(powers);
            let mut y = vec![f32::NAN; m * n];
            matmul(unit, lhs, rhs, &PLAIN, Output::F32(&mut y));
            assert!(y.iter().all(|y| *y == 0.0));
        }
    }
}
