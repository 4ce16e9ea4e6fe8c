//! The sums of tensor cores by every kernel, against the exact reference and against data of cards.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::sums::{
    Accumulation, Accumulator, CANONICAL_NAN, RunningSum, SplitK, SplitOrder, dot, scaled, step,
};
use burn_fp8_cpu::Instructions;
use burn_fp8_cpu::sums::{LineScales, NAN_EXPONENT, Order, matmul};

use crate::common::{Random, alone, golden, pool};

const PAIRS: [[Fp8Format; 2]; 3] = [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]];

const ONE: LineScales<'static> = LineScales::Whole { lhs: &[1.0], rhs: &[1.0] };

/// Runs it with each set of vector instructions that the machine has, in a process of the test's own: the choice is of the whole process.
fn on_each(mut test: impl FnMut(Instructions)) {
    for instructions in Instructions::available() {
        Instructions::force(Some(instructions));
        test(instructions);
    }
}

fn product(
    order: &Order,
    codes: [&[u8]; 2],
    formats: [Fp8Format; 2],
    size: [usize; 3],
    scales: LineScales<'_>,
) -> Vec<u32> {
    let mut y = vec![f32::NAN; size[0] * size[1]];
    matmul(order, codes, formats, size, scales, &mut y);
    y.into_iter().map(f32::to_bits).collect()
}

/// The same by the reference.
fn expected(order: &Order, [a, b]: [&[u8]; 2], formats: [Fp8Format; 2], k: usize) -> Vec<u32> {
    let Order { accumulator, accumulation, split } = *order;
    let row = |a| b.chunks(k).map(move |b| dot(accumulator, [a, b], formats, accumulation, split));
    a.chunks(k).flat_map(row).map(f32::to_bits).collect()
}

/// Codes of some kind: every one that there is, such as quantized tensors have, subnormal ones, pairs that cancel, and blocks of zeros with a large number.
fn codes(random: &mut Random, kind: usize, format: Fp8Format, count: usize) -> Vec<u8> {
    let top = if format == E4M3 { 0x7E } else { 0x7B };
    let mut previous = 0;
    let code = |at| {
        let any = random.below(256) as u8;
        let code = match kind {
            0 => any & 0x80 | (any & 0x7F).min(top),
            1 => any & 0x80 | (top - (any & 0x7F) / 4),
            2 => any & 0x80 | any & 7,
            3 if at % 2 == 1 => previous ^ 0x80 ^ u8::from(any < 64),
            3 => any & 0x80 | 0x20 | any & 0x1F,
            4 if any < 230 => any & 0x80,
            _ => any & 0x80 | (any & 0x7F).min(top),
        };
        previous = code;
        code
    };
    (0..count).map(code).collect()
}

/// mmaemu's data, which were compared with an H100 and an RTX 4060.
#[test]
fn every_kernel_has_the_sums_of_the_golden_data() {
    alone(|| {
        let golden = golden("tensor_cores");
        let paths = [
            ("hopper.fast", Accumulator::HOPPER, Accumulation::Fast),
            ("hopper.slow", Accumulator::HOPPER, Accumulation::Split),
            ("ada.fast", Accumulator::ADA, Accumulation::Fast),
            ("ada.slow", Accumulator::ADA, Accumulation::Split),
        ];
        for case in golden.cases("cases") {
            let name = case["name"].as_str().expect("a name");
            let size = ["m", "n", "k"].map(|key| case[key].as_u64().expect("a size") as usize);
            let formats =
                ["a", "b"].map(|key| case[key].as_str().expect("a format").parse().expect("known"));
            let codes = ["a", "b"].map(|operand| golden.u8s(&format!("{name}/{operand}")));
            let codes = [&codes[0][..], &codes[1]];
            let scale = |key: &str| [case[key].as_f64().expect("a scale") as f32];
            let [lhs, rhs] = [scale("scale_a"), scale("scale_b")];
            for (path, accumulator, accumulation) in paths {
                let order = Order { accumulator, accumulation, split: None };
                let sums = golden.u32s(&format!("{name}/{path}"));
                on_each(|instructions| {
                    let y = product(&order, codes, formats, size, ONE);
                    assert_eq!(y, sums, "{name} {path} {instructions}");
                    if case["scaled"] == true {
                        let scales = LineScales::Whole { lhs: &lhs, rhs: &rhs };
                        let y = product(&order, codes, formats, size, scales);
                        let of_golden = golden.u32s(&format!("{name}/{path}.f32"));
                        assert_eq!(y, of_golden, "{name} {path} {instructions}, scaled");
                    }
                });
            }
        }
    });
}

/// A million outputs of every kind of operand, accumulator and order, by each instruction set, with one thread and with two.
#[test]
fn every_kernel_has_the_bits_of_the_reference() {
    alone(|| {
        let mut random = Random(20261129);
        let custom = [
            Accumulator {
                products: 8,
                fraction: 10,
                result: 9,
                running: RunningSum::Early,
                chain: 48,
            },
            Accumulator { products: 32, fraction: 7, result: 23, ..Accumulator::HOPPER },
            Accumulator { products: 16, fraction: 3, result: 4, ..Accumulator::HOPPER },
            Accumulator { running: RunningSum::Late, ..Accumulator::HOPPER },
            Accumulator { running: RunningSum::Late, ..Accumulator::BLACKWELL },
            Accumulator { products: 5, fraction: 30, result: 23, ..Accumulator::BLACKWELL },
        ];
        let mut outputs = 0;
        let two = pool(2);
        for turn in 0..usize::MAX {
            let accumulator = match turn % 4 {
                0 => Accumulator::HOPPER,
                1 => Accumulator::ADA,
                2 => Accumulator::BLACKWELL,
                _ => custom[turn / 4 % custom.len()],
            };
            let accumulation = random.pick(&[Accumulation::Split, Accumulation::Fast]);
            let orders = [SplitOrder::Contiguous, SplitOrder::Serial, SplitOrder::Pairwise];
            let split = (turn % 5 == 0)
                .then(|| SplitK { splits: 2 + random.below(5), order: orders[random.below(3)] });
            let order = Order { accumulator, accumulation, split };
            let formats = PAIRS[turn % 3];
            let size = [1 + random.below(80), 1 + random.below(60), 1 + random.below(400)];
            let [m, n, k] = size;
            let kinds = [random.below(5), random.below(5)];
            let mut a = codes(&mut random, kinds[0], formats[0], m * k);
            let b = codes(&mut random, kinds[1], formats[1], n * k);
            if turn % 7 == 0 {
                for special in [0x7F, 0xFC, 0x7C] {
                    a[random.below(m * k)] = special;
                }
            }
            let reference = expected(&order, [&a, &b], formats, k);
            on_each(|instructions| {
                let run = || product(&order, [&a, &b], formats, size, ONE);
                let what = || format!("{order:?} {formats:?} {size:?} {kinds:?} {instructions}");
                assert_eq!(run(), reference, "{}", what());
                assert_eq!(two.install(run), reference, "{}, two threads", what());
            });
            outputs += m * n;
            if outputs >= 1_000_000 {
                break;
            }
        }
    });
}

/// By the reference's steps: a chain for each block, times both scales, added in one rounding.
#[test]
fn scales_of_lines_and_of_blocks_are_the_references() {
    alone(|| {
        let mut random = Random(7);
        for (turn, formats) in PAIRS.into_iter().cycle().take(12).enumerate() {
            let accumulator =
                [Accumulator::HOPPER, Accumulator::ADA, Accumulator::BLACKWELL][turn % 3];
            let order = Order { accumulator, accumulation: Accumulation::Fast, split: None };
            let size @ [m, n, k] =
                [1 + random.below(70), 1 + random.below(40), 1 + random.below(400)];
            let a = codes(&mut random, 1, formats[0], m * k);
            let b = codes(&mut random, turn % 5, formats[1], n * k);
            let mut scale = |_| {
                2f32.powi(random.below(30) as i32 - 15) * (1.0 + random.below(99) as f32 / 99.0)
            };
            let blocks = k.div_ceil(128);
            let [lhs, rhs] =
                [m, n].map(|lines| (0..lines * blocks).map(&mut scale).collect::<Vec<f32>>());
            let whole = LineScales::Whole { lhs: &lhs[..m], rhs: &rhs[..1] };
            let in_blocks = LineScales::Blocks { lhs: &lhs, rhs: &rhs, along: 128 };
            let exponent = |scale: &f32| (scale.to_bits() >> 23) as i16 - 127;
            let blocks_of_32 = k.div_ceil(32);
            let [mut of_a, of_b] = [m, n].map(|lines| {
                let of = lhs.iter().cycle().take(lines * blocks_of_32).map(exponent);
                of.enumerate().map(|(at, e)| e * (at % 9) as i16).collect::<Vec<i16>>()
            });
            of_a[0] = NAN_EXPONENT;
            let exponents = LineScales::Exponents { lhs: &of_a, rhs: &of_b, along: 32 };
            let each = |of: &dyn Fn(usize, usize) -> f32| -> Vec<u32> {
                (0..m * n).map(|at| of(at / n, at % n).to_bits()).collect()
            };
            let row = |of: &[u8], line: usize| of[line * k..][..k].to_vec();
            let by_lines = each(&|i, j| {
                let sum =
                    dot(accumulator, [&row(&a, i), &row(&b, j)], formats, Accumulation::Fast, None);
                scaled(sum, [lhs[i], rhs[0]])
            });
            let by_blocks = each(&|i, j| {
                let (a, b) = (row(&a, i), row(&b, j));
                let pieces = a.chunks(128).zip(b.chunks(128)).enumerate();
                pieces.fold(0.0, |total: f32, (at, (a, b))| {
                    let sum = dot(accumulator, [a, b], formats, Accumulation::Fast, None);
                    sum.mul_add(lhs[i * blocks + at] * rhs[j * blocks + at], total)
                })
            });
            let by_exponents = each(&|i, j| {
                if i == 0 {
                    return CANONICAL_NAN;
                }
                let (a, b) = (row(&a, i), row(&b, j));
                let block = accumulator.products as usize;
                let pieces = a.chunks(block).zip(b.chunks(block)).enumerate();
                pieces.fold(0.0, |c, (at, (a, b))| {
                    let at = at * block / 32;
                    let of = [of_a[i * blocks_of_32 + at], of_b[j * blocks_of_32 + at]];
                    step(accumulator, [a, b], formats, of.map(i32::from).iter().sum(), c)
                })
            });
            on_each(|instructions| {
                let of = |scales| product(&order, [&a, &b], formats, size, scales);
                assert_eq!(of(whole), by_lines, "lines {accumulator:?} {size:?} {instructions}");
                assert_eq!(
                    of(in_blocks),
                    by_blocks,
                    "blocks {accumulator:?} {size:?} {instructions}"
                );
                assert_eq!(
                    of(exponents),
                    by_exponents,
                    "MX {accumulator:?} {size:?} {instructions}"
                );
            });
        }
    });
}

/// A scale that is NaN makes what it meets NaN, beside an infinite code of the same row, too.
#[test]
fn scales_that_are_nan_win_over_infinities() {
    let accumulator = Accumulator::BLACKWELL;
    let order = Order { accumulator, accumulation: Accumulation::Fast, split: None };
    // 1 in both formats, and an infinity in the second block.
    let (mut a, b) = (vec![0x3C; 64], vec![0x38; 64]);
    a[40] = 0x7C;
    let product = |scales| product(&order, [&a, &b], [E5M2, E4M3], [1, 1, 64], scales)[0];
    let (zeros, ones) = ([0; 2], [1.0; 2]);
    let exponents = |lhs| LineScales::Exponents { lhs, rhs: &zeros, along: 32 };
    let blocks = |lhs| LineScales::Blocks { lhs, rhs: &ones, along: 32 };
    assert_eq!(product(exponents(&[0, 0])), f32::INFINITY.to_bits());
    assert_eq!(product(exponents(&[NAN_EXPONENT, 0])), CANONICAL_NAN.to_bits());
    assert_eq!(product(blocks(&[1.0, 1.0])), f32::INFINITY.to_bits());
    assert_eq!(product(blocks(&[f32::NAN, 1.0])), CANONICAL_NAN.to_bits());
}

#[test]
fn nothing_is_summed_without_k_and_nothing_written_without_rows() {
    let order =
        Order { accumulator: Accumulator::HOPPER, accumulation: Accumulation::Split, split: None };
    assert_eq!(product(&order, [&[], &[]], PAIRS[0], [2, 3, 0], ONE), [0; 6]);
    assert_eq!(product(&order, [&[], &[0x38; 6]], PAIRS[0], [0, 3, 2], ONE), [0; 0]);
    assert_eq!(product(&order, [&[0x38; 4], &[]], PAIRS[0], [2, 0, 2], ONE), [0; 0]);
}
