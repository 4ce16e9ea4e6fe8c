//! Thousands of products among operations of Burn, with nothing waited for: every result equals that of a run in which each
//! operation was waited for, bit for bit. And that one is right, by sums on the host.
//!
//! Native products run on a stream of their own. If one started before its operands were written, if what follows started before
//! it had ended, or if memory were reused while it reads, some element would differ.

use burn::tensor::Distribution;

use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{Operand, assert_sample, fewer, first, is_small, native, typed};

/// M, K, N.
const SHAPES: [[usize; 3]; 6] = [
    [16, 16, 16],
    [33, 100, 65],
    [128, 256, 64],
    [250, 130, 190],
    [512, 1024, 256],
    [64, 4096, 64],
];
const ITERATIONS: usize = 3000;
/// The device is asked for its verdict so often.
const CHECKED_EVERY: usize = 250;

/// Halves of two operands, and the product of the wholes.
#[derive(Clone)]
pub struct Pair<B: Backend> {
    pub half_x: Tensor<B, 2>,
    pub half_w: Tensor<B, 2>,
    pub y: Tensor<B, 2>,
}

/// Waits until a tensor is computed: what is read has been.
fn wait<B: Backend>(tensor: &Tensor<B, 2>) {
    drop(values(tensor.clone()));
}

/// Waits after each operation, and compares with the host.
pub fn serial<B: Fp8Matmul>(seed: u64) -> Vec<Pair<Fp8Backend<B>>> {
    let pairs = native::<B>().scope(|| serial_as_configured(seed));
    for (index, Pair { half_x, half_w, y }) in pairs.iter().enumerate() {
        let ([m, k], [_, n]) = (half_x.dims(), half_w.dims());
        let [x, w] = [half_x, half_w]
            .map(|half| values(half.clone()).iter().map(|half| 2.0 * half).collect::<Vec<_>>());
        let operands = [Operand(&x, E4M3), Operand(&w, E4M3)];
        let (dtype, what) = (y.dtype().into(), format!("pair {index}"));
        assert_sample::<B>(&values(y.clone()), operands, [m, k, n], dtype, &what);
    }
    pairs
}

/// The same, with products as they are configured; plain ones without the decorator.
pub fn serial_as_configured<B: Backend>(seed: u64) -> Vec<Pair<B>> {
    let mut pairs = vec![];
    for (index, &[m, k, n]) in first(&SHAPES, 4).iter().enumerate() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let seed = 100 * seed + 10 * index as u64;
            let half_x = typed::<B, 2>(&Random(seed).normals(m * k), [m, k], dtype);
            let half_w = typed::<B, 2>(&Random(seed + 1).normals(k * n), [k, n], dtype);
            let [x, w] = [&half_x, &half_w].map(|half| {
                let whole = half.clone() + half.clone();
                wait(&whole);
                whole
            });
            let y = x.matmul(w);
            wait(&y);
            pairs.push(Pair { half_x, half_w, y });
        }
    }
    pairs
}

/// Multiplies operands that were made a moment ago, frees them, and has their memory overwritten. Returns how far the results
/// are from those of the pairs, on the device.
pub fn round<B: Backend>(pair: &Pair<B>, random: &mut Random) -> Tensor<B, 1> {
    let device = pair.y.device();
    let x = pair.half_x.clone() + pair.half_x.clone();
    let w = pair.half_w.clone() + pair.half_w.clone();
    let shape = x.dims();
    let y = x.matmul(w);
    // Probably in the memory of the operands. What is read too late is NaN.
    let overwrite = Tensor::<B, 2>::full(shape, f32::NAN, &device).cast(pair.y.dtype());
    // And one of a size that differs from call to call.
    let [rows, columns] = [1 + random.bits() % 300, 1 + random.bits() % 700].map(|n| n as usize);
    let noise = Tensor::<B, 2>::random([rows, columns], Distribution::Default, &device);
    let difference = (y - pair.y.clone()).abs().cast(FloatDType::F32).sum();
    drop((overwrite, noise));
    difference
}

/// Rounds without waiting, over pairs in random order.
pub fn run<B: Backend>(pairs: &[Pair<B>], seed: u64, iterations: usize, what: &str) {
    let mut random = Random(seed);
    let mut difference = Tensor::<B, 1>::zeros([1], &pairs[0].y.device());
    for iteration in 1..=iterations {
        let pair = &pairs[(random.bits() % pairs.len() as u64) as usize];
        difference = difference + round(pair, &mut random);
        if iteration % CHECKED_EVERY == 0 {
            let difference = values(difference.clone());
            assert_eq!(difference, [0.0], "{what}: some product up to iteration {iteration}");
        }
    }
    assert_eq!(values(difference), [0.0], "{what}");
}

fn interleaved_operations_change_nothing<B: Fp8Matmul>() {
    let pairs = serial::<B>(1);
    native::<B>().scope(|| run(&pairs, 1, fewer::<B>(ITERATIONS), "one thread"));
}

/// Each product takes the result of the one before, so that every wait between streams is needed.
fn chains_change_nothing<B: Fp8Matmul>() {
    const LENGTH: usize = 40;
    let size = if is_small() { 64 } else { 256 };
    let w =
        typed::<Fp8Backend<B>, 2>(&Random(1).normals(size * size), [size, size], FloatDType::F32)
            / 16.0;
    let x =
        typed::<Fp8Backend<B>, 2>(&Random(2).normals(size * size), [size, size], FloatDType::F32);
    let chain = |waiting: bool| {
        let step = |x: Tensor<Fp8Backend<B>, 2>| {
            let y = x.matmul(w.clone());
            if waiting {
                wait(&y);
            }
            y.clamp(-3.0, 3.0)
        };
        native::<B>().scope(|| values((0..LENGTH).fold(x.clone(), |x, _| step(x))))
    };
    let expected = chain(true);
    assert!(expected.iter().any(|y| *y != 0.0) && expected.iter().all(|y| y.is_finite()));
    for _ in 0..fewer::<B>(100) {
        assert_eq!(chain(false), expected);
    }
}

on_cuda_and_rehearsed!([interleaved_operations_change_nothing, chains_change_nothing]);
