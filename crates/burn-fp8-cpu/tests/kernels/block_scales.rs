//! Blocks that are multiplied by powers of two or by scales: products of what they stand for.

use crate::common::{
    Exact, FORMATS, LAYOUTS, Layout, Operand, PAIRS, PLAIN, Random, Runner, Sums, codes_where,
    finite, integers, number, pool,
};
use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_cpu::{BlockScales, Codes, Epilogue, Output, Powers, Unit};

/// Ragged in every dimension; one block of K of a unit, two, and three, parts of blocks with scales, and several of these.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [3, 5, 31],
    [33, 31, 129],
    [15, 70, 256],
    [130, 33, 300],
    [29, 97, 600],
    [2, 130, 1100],
    [70, 3, 1100],
];

/// Elements of blocks along K, and across it in the left and in the right operand.
const BLOCKS: [[usize; 3]; 10] = [
    [32, 1, 1],
    [128, 1, 128],
    [128, 128, 1],
    [32, 128, 32],
    [64, 5, 7],
    [96, 5, 32],
    [512, 1, 64],
    [1024, 1, 33],
    [4096, 33, 1],
    [192, 1, 33],
];

/// What blocks are multiplied by.
#[derive(Clone, Debug)]
enum Factors {
    Powers(Vec<i16>),
    Scales(Vec<f32>),
}

impl Factors {
    fn number(&self, index: usize) -> f64 {
        match self {
            Self::Powers(exponents) => 2f64.powi(exponents[index].into()),
            Self::Scales(scales) => scales[index].into(),
        }
    }

    /// Those at these places.
    fn picked(&self, places: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::Powers(exponents) => Self::Powers(places.map(|at| exponents[at]).collect()),
            Self::Scales(scales) => Self::Scales(places.map(|at| scales[at]).collect()),
        }
    }

    fn given_to<'a>(&'a self, codes: Codes<'a>, block: [usize; 2]) -> Codes<'a> {
        match self {
            Self::Powers(exponents) => codes.with_powers(Powers { exponents, block }),
            Self::Scales(scales) => codes.with_scales(BlockScales { scales, block }),
        }
    }
}

/// How factors are drawn.
type Draw<'a> = &'a dyn Fn(&mut Random, usize, Fp8Format) -> Factors;

/// Powers from 2^lowest to 1.
fn powers(lowest: impl Fn(Fp8Format) -> i16) -> impl Fn(&mut Random, usize, Fp8Format) -> Factors {
    move |random, count, format| {
        let choices = 1 + lowest(format).unsigned_abs() as usize;
        Factors::Powers((0..count).map(|_| -(random.below(choices) as i16)).collect())
    }
}

fn scales(scale: impl Fn(&mut Random) -> f32) -> impl Fn(&mut Random, usize, Fp8Format) -> Factors {
    move |random, count, _| Factors::Scales((0..count).map(|_| scale(random)).collect())
}

/// Scales of few bits, so that integers times them have few.
fn short(random: &mut Random) -> f32 {
    random.pick(&[0.75, 1.0, 1.25, 3.0])
}

/// Scales of all mantissas, over 50 binades.
fn wide(random: &mut Random) -> f32 {
    let mantissa = 1.0 + random.below(1 << 23) as f32 / (1 << 23) as f32;
    mantissa * 2f32.powi(random.below(50) as i32 - 25)
}

fn small_integers(format: Fp8Format) -> Vec<u8> {
    codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 4.0)
}

/// An operand whose blocks are multiplied by something.
struct Blocks {
    operand: Operand,
    block: [usize; 2],
    /// Of the operand, and of its transpose.
    factors: [Factors; 2],
}

impl Blocks {
    fn new(operand: Operand, block: [usize; 2], draw: impl FnOnce(usize) -> Factors) -> Self {
        let [down, across] = [0, 1].map(|i| operand.shape[i].div_ceil(block[i]));
        let factors = draw(down * across);
        let transposed = factors.picked((0..down * across).map(|i| i % down * across + i / down));
        Self { operand, block, factors: [factors, transposed] }
    }

    /// The operand as it is multiplied: factors are given to the matrix or to its transpose.
    fn views(&self) -> [Codes<'_>; 2] {
        let (view, [height, width]) = (self.operand.view(), self.block);
        let [here, there] = &self.factors;
        let transposed = there.given_to(view.transpose(), [width, height]);
        [here.given_to(view, self.block), transposed.transpose()]
    }

    /// What the elements stand for, row by row: exact in f64.
    fn numbers(&self) -> Vec<f64> {
        let ([height, width], columns) = (self.block, self.operand.shape[1]);
        let across = columns.div_ceil(width);
        let block = |index: usize| index / columns / height * across + index % columns / width;
        let numbers = self.operand.numbers(0);
        let times = |(index, x): (usize, &f64)| x * self.factors[0].number(block(index));
        numbers.iter().enumerate().map(times).collect()
    }
}

fn reference(lhs: &Blocks, rhs: &Blocks) -> Exact {
    let ([m, k], n) = (lhs.operand.shape, rhs.operand.shape[1]);
    let exact = Exact::product(&lhs.numbers(), &rhs.numbers(), [m, k, n]);
    match lhs.factors[0] {
        Factors::Powers(_) => exact,
        // The product of scales, the sum times it, and, where operands are scaled before, their product.
        Factors::Scales(_) => exact.with_roundings(4),
    }
}

fn product(runner: Runner, lhs: Codes<'_>, rhs: Codes<'_>, epilogue: &Epilogue<'_>) -> Vec<f32> {
    let mut y = vec![-1.25e-33; lhs.shape()[0] * rhs.shape()[1]];
    runner.run(lhs, rhs, epilogue, Output::F32(&mut y));
    y
}

/// Calls `each` with operands of all shapes, blocks and layouts, whose codes and factors are drawn.
fn for_each_case(
    seed: u64,
    codes: impl Fn(Fp8Format) -> Vec<u8>,
    factors: Draw<'_>,
    mut each: impl FnMut(&Blocks, &Blocks, &str),
) {
    let mut random = Random(seed);
    for (index, [m, n, k]) in SHAPES.into_iter().enumerate() {
        for (which, [along, of_lhs, of_rhs]) in BLOCKS.into_iter().enumerate() {
            let formats = PAIRS[(index + which) % 4];
            let layouts = [LAYOUTS[(index + which / 2) % 4], LAYOUTS[which % 4]];
            let mut draw = |side: usize, shape: [usize; 2], block| {
                let format = formats[side];
                let codes = random.picks(&codes(format), shape[0] * shape[1]);
                let operand = Operand::new(codes, format, shape, layouts[side]);
                Blocks::new(operand, block, |count| factors(&mut random, count, format))
            };
            let lhs = draw(0, [m, k], [of_lhs, along]);
            // Powers may lie in other blocks than those of the left operand: every other time.
            let along = match lhs.factors[0] {
                Factors::Powers(_) => BLOCKS[(which + index % 2 * 3) % BLOCKS.len()][0],
                Factors::Scales(_) => along,
            };
            let rhs = draw(1, [k, n], [along, of_rhs]);
            let blocks = (lhs.block, rhs.block);
            each(&lhs, &rhs, &format!("{m}×{n}×{k} {formats:?} {layouts:?} {blocks:?}"));
        }
    }
}

/// 1100 products of up to 16 times numbers of few bits: an f32 holds every sum of them.
#[test]
fn small_integers_in_blocks_are_multiplied_exactly() {
    for factors in [&powers(|_| -4) as Draw, &scales(short)] {
        for_each_case(1, small_integers, factors, |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            let epilogues = [(PLAIN, 1.0), (Epilogue::scaled(2.0, 0.125), 0.25)];
            for runner in Runner::all() {
                let views = lhs.views().into_iter().zip(rhs.views());
                for ((lhs, rhs), (epilogue, scale)) in views.zip(&epilogues) {
                    let y = product(runner, lhs, rhs, epilogue);
                    assert_eq!(
                        expected.clone().times(*scale).inexact(&y),
                        None,
                        "{runner:?} {what}"
                    );
                }
            }
        });
    }
}

#[test]
fn all_finite_codes_are_within_the_bound() {
    // As low as both powers may be: what the codes of the formats leave of 2^-126.
    let lowest = |format| if format == E4M3 { -54 } else { -47 };
    for [left, right] in PAIRS {
        assert!(Powers::are_exact((left, lowest(left)), (right, lowest(right))));
    }
    for factors in [&powers(lowest) as Draw, &scales(wide)] {
        for_each_case(3, finite, factors, |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.views()[1], &PLAIN);
                assert_eq!(expected.mismatch(&y, Sums::Nearest), None, "{runner:?} {what}");
            }
        });
    }
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
    for factors in [&powers(|_| -40) as Draw, &scales(wide)] {
        let mut classes = [0; 3];
        for_each_case(4, codes, factors, |lhs, rhs, what| {
            let expected = reference(lhs, rhs);
            for sum in &expected.values {
                classes[usize::from(sum.is_nan()) + 2 * usize::from(sum.is_infinite())] += 1;
            }
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.views()[0], &PLAIN);
                assert_eq!(expected.mismatch(&y, Sums::Nearest), None, "{runner:?} {what}");
            }
        });
        assert!(classes.iter().all(|count| *count > 100), "{classes:?}");
    }
}

/// Many tasks, whose panels begin within blocks; the largest exponents are folded into the scales.
#[test]
fn large_products_are_the_same_on_any_number_of_threads() {
    let mut random = Random(6);
    let pools = [1, 2, 3].map(pool);
    let epilogue = Epilogue::scaled(2f32.powi(-60), 2f32.powi(75));
    for factors in [&powers(|_| -4) as Draw, &scales(short)] {
        for (index, (m, [along, of_lhs, of_rhs])) in [
            (300, [32, 1, 1]),
            (300, [128, 1, 128]),
            (300, [64, 100, 45]),
            (300, [96, 70, 33]),
            (7, [192, 1, 33]),
            (2, [128, 1, 128]),
        ]
        .into_iter()
        .enumerate()
        {
            let ([n, k], formats) = ([570, 1056], PAIRS[index % 4]);
            for is_exact in [true, false] {
                let codes = if is_exact { small_integers } else { finite };
                let mut draw = |side: usize, shape: [usize; 2], block| {
                    let (format, layout) = (formats[side], random.pick(&LAYOUTS));
                    // Few rows are multiplied in a way of their own by columns.
                    let layout = if m < 300 && side == 1 { Layout::Transposed } else { layout };
                    let operand =
                        Operand::random(&mut random, &codes(format), format, shape, layout);
                    Blocks::new(operand, block, |count| factors(&mut random, count, format))
                };
                let lhs = draw(0, [m, k], [of_lhs, along]);
                let rhs = draw(1, [k, n], [along, of_rhs]);
                let expected = is_exact.then(|| reference(&lhs, &rhs));
                for runner in Runner::units() {
                    let mut first: Option<Vec<f32>> = None;
                    for pool in &pools {
                        let views = (lhs.views()[0], rhs.views()[1]);
                        let y = pool.install(|| product(runner, views.0, views.1, &epilogue));
                        let what = format!("{runner:?} {formats:?} {along} {of_lhs} {of_rhs}");
                        if let Some(expected) = &expected {
                            assert_eq!(expected.clone().times(32768.0).inexact(&y), None, "{what}");
                        }
                        // The crate gemm may sum in another order.
                        if runner != Runner::Unit(Unit::Portable) {
                            let first = first.get_or_insert_with(|| y.clone());
                            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                            assert!(first.iter().zip(&y).all(same), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn empty_matrices_have_no_factors() {
    for factors in [&powers(|_| 0) as Draw, &scales(short)] {
        for [m, n, k] in [[0, 3, 40], [3, 0, 40], [2, 3, 0]] {
            let blocks = |shape: [usize; 2], block| {
                let codes = vec![0x38; shape[0] * shape[1]];
                let operand = Operand::new(codes, E4M3, shape, Layout::Rows);
                Blocks::new(operand, block, |count| factors(&mut Random(0), count, E4M3))
            };
            let (lhs, rhs) = (blocks([m, k], [1, 32]), blocks([k, n], [32, 1]));
            for runner in Runner::all() {
                let y = product(runner, lhs.views()[0], rhs.views()[1], &PLAIN);
                assert!(y.iter().all(|y| *y == 0.0));
            }
        }
    }
}

/// One operand with powers, the other without.
#[test]
fn either_operand_may_have_no_powers() {
    for_each_case(2, small_integers, &powers(|_| -8), |lhs, rhs, what| {
        let (a, b) = (lhs.operand.numbers(0), rhs.operand.numbers(0));
        let ([m, k], n) = (lhs.operand.shape, rhs.operand.shape[1]);
        let left = Exact::product(&lhs.numbers(), &b, [m, k, n]);
        let right = Exact::product(&a, &rhs.numbers(), [m, k, n]);
        for runner in Runner::all() {
            let y = product(runner, lhs.views()[0], rhs.operand.view(), &PLAIN);
            assert_eq!(left.inexact(&y), None, "{runner:?} {what} left");
            let y = product(runner, lhs.operand.view(), rhs.views()[0], &PLAIN);
            assert_eq!(right.inexact(&y), None, "{runner:?} {what} right");
        }
    });
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
            let lhs = Blocks::new(lhs, [1, 32], |count| Factors::Powers(vec![0; count]));
            let rhs = Blocks::new(rhs, [128, 128], |count| Factors::Powers(vec![0; count]));
            for runner in Runner::all() {
                let with = product(runner, lhs.views()[0], rhs.views()[0], &PLAIN);
                let without = runner.product(&lhs.operand, &rhs.operand, &PLAIN);
                let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits();
                assert!(with.iter().zip(&without).all(same), "{runner:?} {m}×{n}×{k}");
            }
        }
    }
}

/// A weight with powers, multiplied by each matrix of a batch.
#[test]
fn a_matrix_with_powers_can_be_broadcast() {
    let mut random = Random(7);
    let ([m, n, k], batch) = ([17, 40, 96], 3);
    let codes = random.picks(&integers(E4M3), batch * m * k);
    let rhs = Operand::random(&mut random, &integers(E4M3), E4M3, [k, n], Layout::Transposed);
    let rhs = Blocks::new(rhs, [32, 1], |count| powers(|_| -2)(&mut random, count, E4M3));
    let lhs = Codes::batch(&codes, E4M3, batch, [m, k]);
    for runner in Runner::all() {
        let mut y = vec![f32::NAN; batch * m * n];
        let weight = rhs.views()[0].broadcast(batch);
        runner.run(lhs, weight, &PLAIN, Output::F32(&mut y));
        for (codes, y) in codes.chunks(m * k).zip(y.chunks(m * n)) {
            let lhs = Operand::new(codes.to_vec(), E4M3, [m, k], Layout::Rows);
            let expected = Exact::product(&lhs.numbers(0), &rhs.numbers(), [m, k, n]);
            assert_eq!(expected.inexact(y), None, "{runner:?}");
        }
    }
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
        let rhs = Codes::rows(&codes, E4M3, [40, count])
            .with_scales(BlockScales { scales: &of_rhs, block });
        // Few rows, and more.
        for (rows, runner) in
            [2, 40].into_iter().flat_map(|m| Runner::units().into_iter().map(move |unit| (m, unit)))
        {
            let lhs = Codes::rows(&codes[..rows * count], E4M3, [rows, count])
                .with_scales(BlockScales { scales: &of_lhs[..rows], block });
            let y = product(runner, lhs, rhs.transpose(), &PLAIN);
            assert!(
                y.iter().all(|y| (f64::from(*y) / expected - 1.0).abs() < 1e-6),
                "{runner:?} {} {expected:e}",
                y[0]
            );
        }
    }
}
