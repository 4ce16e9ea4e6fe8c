//! NaN, infinities, zeros, subnormal numbers, outliers: results as IEEE 754 has them, and nothing where it does not belong.

use crate::common::{
    FORMATS, LAYOUTS, Layout, Operand, PAIRS, PLAIN, Random, Runner, Sums, codes_where, exact,
    finite, integers,
};
use burn_fp8_core::Fp8Format::{self, E5M2};

/// NaN of either sign in both formats.
const NAN: [u8; 2] = [0x7F, 0xFF];

/// ±infinity in E5M2.
const INFINITE: [u8; 2] = [0x7C, 0xFC];

/// The first operand's shape is `[M, K]`: around panels and blocks, with every kind of padding.
const SHAPES: [[usize; 3]; 7] =
    [[1, 1, 1], [3, 5, 31], [5, 67, 69], [15, 33, 33], [29, 31, 65], [33, 97, 70], [17, 65, 1025]];

#[test]
fn every_code_times_every_code_is_exact() {
    let all: Vec<u8> = (0..=255).collect();
    for [left, right] in PAIRS {
        let lhs = Operand::new(all.clone(), left, [256, 1], Layout::Rows);
        let rhs = Operand::new(all.clone(), right, [1, 256], Layout::Rows);
        let expected = exact(&lhs, &rhs);
        for runner in Runner::all() {
            let y = runner.product(&lhs, &rhs, &PLAIN);
            assert_eq!(expected.inexact(&y), None, "{runner:?} {left} {right}");
        }
    }
}

/// The product of integers with one code replaced: its row, or its column, as IEEE has it, all others exact.
#[test]
fn a_special_code_changes_its_own_row_or_column_only() {
    let mut random = Random(1);
    for [m, n, k] in SHAPES {
        for pair in PAIRS {
            let mut draw = |format, shape| {
                let layout = random.pick(&LAYOUTS);
                Operand::random(&mut random, &integers(format), format, shape, layout)
            };
            let operands = [draw(pair[0], [m, k]), draw(pair[1], [k, n])];
            for side in [0, 1] {
                let format = pair[side];
                let specials: &[u8] = if format == E5M2 { &[0x7F, 0xFF, 0x7C, 0xFC] } else { &NAN };
                let [rows, columns] = operands[side].shape;
                for [row, column] in [[0, 0], [rows - 1, columns - 1], [rows / 2, columns / 2]] {
                    let mut codes = operands[side].codes.clone();
                    codes[row * columns + column] = random.pick(specials);
                    let mut changed = operands.clone();
                    let layout = random.pick(&LAYOUTS);
                    changed[side] = Operand::new(codes, format, [rows, columns], layout);
                    let [lhs, rhs] = &changed;
                    let expected = exact(lhs, rhs);
                    let special =
                        expected.values.iter().enumerate().filter(|(_, x)| !x.is_finite());
                    let line = |(at, _)| if side == 0 { at / n == row } else { at % n == column };
                    assert!(special.clone().all(line));
                    assert_eq!(special.count(), [n, m][side]);
                    for runner in Runner::all() {
                        let y = runner.product(lhs, rhs, &PLAIN);
                        let what = (m, n, k, pair, side, row, column);
                        assert_eq!(expected.inexact(&y), None, "{runner:?} {what:?}");
                    }
                }
            }
        }
    }
}

/// ∞·0, ∞ − ∞, ∞ + x, NaN and their signs, in all mixtures.
#[test]
fn mixtures_of_special_codes_come_out_as_in_f64() {
    let mut random = Random(3);
    for [left, right] in PAIRS {
        let small = |format| {
            let mut codes = codes_where(format, |x| x.abs() == 1.0 || x == 0.0);
            // Rarely zero, else ∞·0 hides the rest.
            codes.extend([0x01, 0x81].repeat(60));
            codes
        };
        let mut classes = [0; 4];
        for round in 0..60 {
            let [m, n, k] = [1 + random.below(40), 1 + random.below(70), 1 + random.below(140)];
            let draw = |random: &mut Random, format, count: usize| {
                let mut codes = random.picks(&small(format), count);
                for _ in 0..random.below(2 + count / 40) {
                    let kinds: &[[u8; 2]] = match format {
                        Fp8Format::E4M3 => &[NAN],
                        Fp8Format::E5M2 if round % 3 == 0 => &[NAN, INFINITE],
                        Fp8Format::E5M2 => &[INFINITE],
                    };
                    let kind = random.pick(kinds);
                    codes[random.below(count)] = random.pick(&kind);
                }
                codes
            };
            let (a, b) = (draw(&mut random, left, m * k), draw(&mut random, right, k * n));
            let lhs = Operand::new(a, left, [m, k], random.pick(&LAYOUTS));
            let rhs = Operand::new(b, right, [k, n], random.pick(&LAYOUTS));
            let expected = exact(&lhs, &rhs);
            for sum in &expected.values {
                let class = if sum.is_nan() {
                    0
                } else if sum.is_finite() {
                    1
                } else {
                    2 + usize::from(*sum < 0.0)
                };
                classes[class] += 1;
            }
            for runner in Runner::all() {
                let y = runner.product(&lhs, &rhs, &PLAIN);
                assert_eq!(
                    expected.mismatch(&y, Sums::Nearest),
                    None,
                    "{runner:?} {m}×{n}×{k} {left} {right}"
                );
            }
        }
        let infinite = left == Fp8Format::E5M2 || right == Fp8Format::E5M2;
        assert!(classes[0] > 100 && classes[1] > 100, "{classes:?}");
        assert!(!infinite || classes[2] > 100 && classes[3] > 100, "{classes:?}");
    }
}

#[test]
fn zeros_of_both_signs_give_zero() {
    let mut random = Random(4);
    for format in FORMATS {
        for [m, n, k] in SHAPES {
            let lhs = Operand::random(&mut random, &[0x00, 0x80], format, [m, k], Layout::Rows);
            let rhs = Operand::random(&mut random, &finite(format), format, [k, n], Layout::Rows);
            for runner in Runner::all() {
                let y = runner.product(&lhs, &rhs, &PLAIN);
                assert!(y.iter().all(|y| *y == 0.0), "{runner:?} {format} {m}×{n}×{k}");
            }
        }
    }
}

/// Products are multiples of 2^-32 at least, and fewer than 2^24 of them: a unit that flushed codes would give zeros.
#[test]
fn subnormal_codes_are_multiplied_exactly() {
    let mut random = Random(5);
    let subnormal = |format: Fp8Format| {
        let limit = f64::from(format.min_positive_normal());
        codes_where(format, |x| x.abs() < limit && x != 0.0)
    };
    for [left, right] in PAIRS {
        for [m, n, k] in [[1, 1, 1], [15, 33, 70], [20, 40, 2500]] {
            let (layout, other) = (random.pick(&LAYOUTS), random.pick(&LAYOUTS));
            let lhs = Operand::random(&mut random, &subnormal(left), left, [m, k], layout);
            let rhs = Operand::random(&mut random, &subnormal(right), right, [k, n], other);
            let expected = exact(&lhs, &rhs);
            assert!(expected.magnitudes.iter().all(|size| *size > 0.0));
            for runner in Runner::all() {
                let y = runner.product(&lhs, &rhs, &PLAIN);
                assert_eq!(expected.inexact(&y), None, "{runner:?} {m}×{n}×{k} {left} {right}");
            }
        }
    }
}

#[test]
fn an_outlier_among_tiny_values_is_within_the_bound_and_leaves_other_rows_exact() {
    let mut random = Random(6);
    for [left, right] in PAIRS {
        let [m, n, k] = [30, 66, 300];
        let tiny = |format: Fp8Format| {
            codes_where(format, |x| x.abs() <= f64::from(format.min_positive_subnormal()) * 2.0)
        };
        let largest = |format: Fp8Format| codes_where(format, |x| x == f64::from(format.max()))[0];
        let mut lhs = random.picks(&tiny(left), m * k);
        let mut rhs = random.picks(&tiny(right), k * n);
        let (row, column, middle) = (13, 32, 255);
        lhs[row * k + middle] = largest(left);
        rhs[middle * n + column] = largest(right) | 0x80;
        let lhs = Operand::new(lhs, left, [m, k], Layout::Transposed);
        let rhs = Operand::new(rhs, right, [k, n], Layout::Transposed);
        let expected = exact(&lhs, &rhs);
        for runner in Runner::all() {
            let y = runner.product(&lhs, &rhs, &PLAIN);
            assert_eq!(expected.mismatch(&y, Sums::Nearest), None, "{runner:?} {left} {right}");
            for (index, (y, sum)) in y.iter().zip(&expected.values).enumerate() {
                if index / n != row && index % n != column {
                    assert_eq!(f64::from(*y), *sum, "{runner:?} {left} {right} {index}");
                }
            }
        }
    }
}

/// Panels are packed into memory that still holds those of the product before.
#[test]
fn nothing_of_a_product_is_left_for_the_next() {
    let mut random = Random(7);
    for format in FORMATS {
        for [m, n, k] in SHAPES {
            let nan = Operand::random(&mut random, &NAN, format, [70, 1100], Layout::Rows);
            let other = Operand::random(&mut random, &NAN, format, [1100, 100], Layout::Rows);
            let lhs = Operand::random(&mut random, &integers(format), format, [m, k], Layout::Rows);
            let rhs =
                Operand::random(&mut random, &integers(format), format, [k, n], Layout::Transposed);
            let expected = exact(&lhs, &rhs);
            for runner in Runner::all() {
                assert!(runner.product(&nan, &other, &PLAIN).iter().all(|y| y.is_nan()));
                let y = runner.product(&lhs, &rhs, &PLAIN);
                assert_eq!(expected.inexact(&y), None, "{runner:?} {m}×{n}×{k} {format}");
            }
        }
    }
}

/// E5M2 reaches 57344 · 57344 · K, beyond f16 and bf16 steps but far inside of f32.
#[test]
fn the_largest_codes_do_not_overflow() {
    for [left, right] in PAIRS {
        let k = 2500;
        let largest = |format: Fp8Format| codes_where(format, |x| x == f64::from(format.max()))[0];
        let lhs = Operand::new(vec![largest(left); 2 * k], left, [2, k], Layout::Rows);
        let rhs = Operand::new(vec![largest(right) | 0x80; 3 * k], right, [k, 3], Layout::Rows);
        let expected = exact(&lhs, &rhs);
        for runner in Runner::all() {
            let y = runner.product(&lhs, &rhs, &PLAIN);
            assert_eq!(expected.mismatch(&y, Sums::Nearest), None, "{runner:?} {left} {right}");
        }
    }
}
