//! Outputs bit for bit: sums by `burn_fp8_core::sums`, and after them the epilogue in f32.

use burn_fp8_core::sums::{self, Accumulator, dot, scaled, step};
use burn_fp8_cublaslt::*;

use crate::data::{Case, Inputs, block_of, encode, place_of_scale};

/// Products of codes that are compared of one case, some of all outputs: the model is slow.
const PRODUCTS: u64 = 50_000;

/// Whether the device is a simulated one, for which `cargo xtask sim` says so.
pub fn is_simulated() -> bool {
    std::env::var_os("SIM_HOME").is_some()
}

/// That of a device; none where it is not known.
pub fn accumulator(compute: ComputeCapability) -> Option<Accumulator> {
    match compute {
        ComputeCapability::SM_89 => Some(Accumulator::ADA),
        ComputeCapability::SM_90 => Some(Accumulator::HOPPER),
        ComputeCapability::SM_100 => Some(Accumulator::BLACKWELL),
        _ => None,
    }
}

/// What the model calls that of a product.
pub fn accumulation(problem: &ScaledMatmul) -> sums::Accumulation {
    match problem.accumulation {
        Accumulation::Precise => sums::Accumulation::Split,
        Accumulation::Fast => sums::Accumulation::Fast,
    }
}

/// The sum over K of codes that lie one after the other, with the scales of blocks but without others.
fn sum(
    accumulator: Accumulator,
    problem: &ScaledMatmul,
    [a, b]: [&[u8]; 2],
    scale: impl Fn(usize) -> [f32; 2],
) -> f32 {
    let formats = [problem.a.format, problem.b.format];
    let accumulation = accumulation(problem);
    let chain = accumulator.chain as usize;
    let pieces = |length: usize| a.chunks(length).zip(b.chunks(length)).enumerate();
    match block_of(problem, true) {
        None => dot(accumulator, [a, b], formats, accumulation, None),
        Some(BlockScale::Row32) => {
            let (mut total, mut sum) = (0.0, 0.0);
            for (index, (a, b)) in pieces(32) {
                if problem.accumulation == Accumulation::Precise && index * 32 % chain == 0 {
                    total += sum;
                    sum = 0.0;
                }
                let [x, y] = scale(index * 32).map(|scale| scale.log2() as i32);
                sum = step(accumulator, [a, b], formats, x + y, sum);
            }
            total + sum
        }
        Some(_) => pieces(128).fold(0.0, |total, (index, (a, b))| {
            let [x, y] = scale(index * 128);
            let chain = dot(accumulator, [a, b], formats, sums::Accumulation::Fast, None);
            chain.mul_add(x * y, total)
        }),
    }
}

/// The bytes of an element of D. None after GELU, whose tanh is an approximation.
fn element(
    accumulator: Accumulator,
    case: &Case,
    inputs: &Inputs,
    [index, i, j]: [u64; 3],
) -> Option<Vec<u8>> {
    let problem = &case.problem;
    let Batch { a, b, .. } = problem.batch;
    let k = problem.shape.k as usize;
    let a = &inputs.a[(index * a + i * problem.a.ld) as usize..][..k];
    let b = &inputs.b[(index * b + j * problem.b.ld) as usize..][..k];
    let scale = |k: u64| match problem.scales {
        Scales::None => [1.0; 2],
        _ => [
            inputs.scale_a[place_of_scale(problem, true, i, k) as usize],
            inputs.scale_b[place_of_scale(problem, false, j, k) as usize],
        ],
    };
    let sum = sum(accumulator, problem, [a, b], |k| scale(k as u64));
    let factor = match problem.scales {
        Scales::Blocks { .. } => 1.0,
        _ => scale(0).iter().product(),
    };
    let y = match problem.c {
        None => scaled(sum, [factor, case.alpha]),
        Some(c) => {
            let c = inputs.c[(i * c.ld + j) as usize] as f32;
            sum.mul_add(factor * case.alpha, case.beta * c)
        }
    };
    let y = problem.epilogue.bias.map_or(y, |_| y + inputs.bias[j as usize] as f32);
    let y = match problem.epilogue.activation {
        Activation::None => y,
        Activation::Relu => y.max(0.0),
        Activation::Gelu => return None,
    };
    Some(encode(problem.d.dtype, &[y * inputs.inverse_scale_d]))
}

/// Compares bits of D with the model. A simulated device has all of them; a real one may split K, and what differs is printed.
pub fn compare_bits(compute: ComputeCapability, case: &Case, inputs: &Inputs, d: &[u8]) {
    let Some(accumulator) = accumulator(compute) else { return };
    let problem = &case.problem;
    let (Shape { m, n, k }, count) = (problem.shape, problem.batch.count);
    // Odd, so that all columns have their turn.
    let every = (count * m * n * k / PRODUCTS) as usize | 1;
    let size = problem.d.dtype.size() as usize;
    let (mut compared, mut different) = (0, 0);
    for at in (0..count * m * n).step_by(every) {
        let place = [at / (m * n), at / n % m, at % n];
        let Some(expected) = element(accumulator, case, inputs, place) else { return };
        let start = (place[0] * problem.batch.d + place[1] * problem.d.ld + place[2]) as usize;
        compared += 1;
        different += usize::from(d[start * size..][..size] != expected);
    }
    println!("{different} of {compared} outputs differ in bits from {accumulator}");
    assert!(different == 0 || !is_simulated(), "{different} of {compared} differ\n{case:?}");
}
