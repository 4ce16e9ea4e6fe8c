//! Products with the sums of tensor cores, emulated on the host, from codes to f32: against f32 by the crate `gemm`. And a training step of the example
//! char-lm with them, against f32.

use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use burn_fp8_bench_f32::Gemm;
use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::sums::{Accumulation, Accumulator};
use burn_fp8_cpu::Instructions;
use burn_fp8_cpu::sums::{LineScales, Order, matmul};
use char_lm::{Moments, Size, training_steps};

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "sums";

/// M, N and K.
const SHAPES: [[usize; 3]; 2] = [[1024, 1024, 1024], [256, 4096, 1024]];

/// What is measured: a name, the accumulator and its order, the formats.
const SUMS: [(&str, Accumulator, Accumulation, [Fp8Format; 2]); 6] = [
    ("Hopper, fast", Accumulator::HOPPER, Accumulation::Fast, [E4M3, E4M3]),
    ("Hopper, split", Accumulator::HOPPER, Accumulation::Split, [E4M3, E4M3]),
    ("Hopper, fast, E4M3 × E5M2", Accumulator::HOPPER, Accumulation::Fast, [E4M3, E5M2]),
    ("Hopper, split, E5M2 × E4M3", Accumulator::HOPPER, Accumulation::Split, [E5M2, E4M3]),
    ("Ada, fast", Accumulator::ADA, Accumulation::Fast, [E4M3, E4M3]),
    ("Blackwell, fast", Accumulator::BLACKWELL, Accumulation::Fast, [E4M3, E4M3]),
];

/// The least speed in relation to f32: with AVX-512, and with AVX2.
const TARGETS: [(Instructions, f64); 2] =
    [(Instructions::Widest, 0.12), (Instructions::Avx2, 0.06)];

/// Measures each shape at each number of threads, with each set of vector instructions.
pub fn run(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for (instructions, target) in TARGETS {
        if !Instructions::available().contains(&instructions) {
            continue;
        }
        Instructions::force(Some(instructions));
        for shape in SHAPES {
            let measure = |threads| measure(shape, threads, instructions, target, options);
            rows.extend(options.on_pools(measure));
        }
    }
    Instructions::force(None);
    rows.extend(options.on_pools(|threads| vec![step(threads, options)]));
    rows
}

/// A step of char-lm, size `medium`: at most eight times as long as in f32.
fn step(threads: usize, options: &Options) -> Row {
    let steps = |precision: &str| {
        let (shape, precision) = (Size::Medium.shape(), precision.parse().expect("a precision"));
        training_steps::<Fp8Backend<Autodiff<Flex>>>(shape, precision, Moments::F32, |_| ())
            .expect("Flex has it")
    };
    let [mut hopper, mut f32] = [steps("m=fp8,sums=hopper"), steps("f32")];
    let (subject, reference) = (
        Side::new("a step of medium, m=fp8,sums=hopper", &mut hopper),
        Side::new("a step of medium, f32", &mut f32),
    );
    options.compare((GROUP, threads, Some(0.125)), subject, reference)
}

fn measure(
    [m, n, k]: [usize; 3],
    threads: usize,
    instructions: Instructions,
    target: f64,
    options: &Options,
) -> Vec<Row> {
    let mut f32 = Gemm::new([m, n, k]);
    let mut output = vec![0.0; m * n];
    let measured = SUMS.map(|(name, accumulator, accumulation, formats)| {
        // Every finite code.
        let codes = |count: usize, format: Fp8Format| -> Vec<u8> {
            let code = |i: usize| (i * 97 % 255) as u8;
            let is_finite = |code: u8| !format.is_nan(code) && !format.is_infinite(code);
            (0..count).map(|i| if is_finite(code(i)) { code(i) } else { 0 }).collect()
        };
        let [a, b] = [(m * k, formats[0]), (n * k, formats[1])].map(|(c, f)| codes(c, f));
        let order = Order { accumulator, accumulation, split: None };
        let scales = LineScales::Whole { lhs: &[0.5], rhs: &[0.25] };
        let mut run = || matmul(&order, [&a, &b], formats, [m, n, k], scales, &mut output);
        let beside = if instructions == Instructions::Avx2 { ", AVX2" } else { "" };
        let name = format!("{m}×{n}×{k}, {name}{beside}");
        let is_wanted = accumulator == Accumulator::HOPPER;
        let mut other = || f32.run();
        let reference = Side::new("f32, AVX-512", &mut other);
        let target = is_wanted.then_some(target);
        options.compare((GROUP, threads, target), Side::new(&name, &mut run), reference)
    });
    measured.into()
}
