//! The same from several threads, which have streams of their own in CubeCL: with tensors of their own, with shared ones, and
//! with tensors that travel between threads before they are computed.

use std::sync::mpsc;

use crate::common::transpose;
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::stress::{Pair, round, run, serial, serial_as_configured};
use crate::support::{Operand, assert_sample, fewer, native};

const THREADS: u64 = 4;
const ITERATIONS: usize = 1000;
const ROUNDS: usize = 300;

fn with_their_own_tensors<B: Fp8Matmul>() {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let pairs = serial::<B>(thread);
                let (iterations, what) = (fewer::<B>(ITERATIONS), format!("thread {thread}"));
                native::<B>().scope(|| run(&pairs, thread, iterations, &what));
            });
        }
    });
}

/// Operands and expected results that another thread made.
fn with_shared_tensors<B: Fp8Matmul>() {
    let pairs = serial::<B>(7);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pairs = pairs.clone();
            scope.spawn(move || {
                let (iterations, what) = (fewer::<B>(ITERATIONS), format!("thread {thread}"));
                native::<B>().scope(|| run(&pairs, thread, iterations, &what));
            });
        }
    });
}

/// Operands that another thread has only enqueued, and frees at once. CubeCL 0.10 itself may give memory to another stream before
/// that which uses it is done: products without FP8 are the control, and ours may fail about as often as these, not where none does.
/// Where each thread waits for what it made, CubeCL has nothing to mistake, and nothing is excused.
fn with_tensors_that_travel<B: Fp8Matmul>() {
    let rounds = fewer::<B>(ROUNDS);
    let config = native::<B>();
    let pairs = serial::<B>(8);
    let wrong = travel(&pairs, &config, rounds, Handover::Enqueued);
    let plain = travel(&serial_as_configured::<B>(8), &config, rounds, Handover::Enqueued);
    let waited = travel(&pairs, &config, rounds, Handover::Computed);
    println!(
        "of {rounds} rounds, wrong natively: {wrong}; wrong without FP8: {plain}; wrong natively with waiting: {waited}"
    );
    assert_eq!(waited, 0, "of {rounds} rounds that waited for operands and results");
    // Chance: twice as many, and two.
    let excused = if plain == 0 { 0 } else { 2 * plain + 2 };
    assert!(wrong <= excused, "{wrong} of {rounds} rounds are wrong, {plain} without FP8");
}

/// What a thread hands over to another one.
#[derive(Clone, Copy)]
enum Handover {
    /// Tensors as they are.
    Enqueued,
    /// Tensors that it has waited for; and it frees nothing that is still read.
    Computed,
}

/// In how many rounds some result was not that of the pairs.
fn travel<B: Backend>(
    pairs: &[Pair<B>],
    config: &Fp8Config,
    rounds: usize,
    handover: Handover,
) -> usize {
    // For what this thread has enqueued.
    let settle = move || match handover {
        Handover::Enqueued => {}
        Handover::Computed => B::sync(&B::Device::default()).expect("the device computes"),
    };
    let (results, verdicts) = mpsc::channel();
    let mut wrong = 0;
    std::thread::scope(|scope| {
        let workers: Vec<mpsc::Sender<Pair<B>>> = (0..THREADS)
            .map(|thread| {
                let (sender, receiver) = mpsc::channel::<Pair<B>>();
                let results = results.clone();
                scope.spawn(move || {
                    let mut random = Random(thread);
                    config.scope(|| {
                        for pair in receiver {
                            let difference = round(&pair, &mut random);
                            settle();
                            results.send(difference).expect("the main thread listens");
                        }
                    });
                });
                sender
            })
            .collect();
        let mut random = Random(1);
        for _ in 0..rounds {
            let pair = &pairs[(random.bits() % pairs.len() as u64) as usize];
            for worker in &workers {
                let double = |tensor: &Tensor<B, 2>| (tensor.clone() * 2.0) * 0.5;
                let pair = Pair {
                    half_x: double(&pair.half_x),
                    half_w: double(&pair.half_w),
                    y: double(&pair.y),
                };
                settle();
                worker.send(pair).expect("the worker listens");
            }
            // Results come back as they are: enqueued, unless waited for.
            let differences = (0..THREADS).map(|_| verdicts.recv().expect("the workers send"));
            let right = differences.map(|difference| values(difference * 2.0) == [0.0]);
            // All of them are taken, also after one that is wrong.
            wrong += usize::from(right.fold(false, |wrong, right| wrong | !right));
        }
        drop(workers);
    });
    wrong
}

/// Gradients of threads that train at the same time equal those of one alone, which are right by sums on the host.
fn that_train_at_once<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    const SHAPE: [usize; 3] = [128, 192, 160];
    fn data(seed: u64) -> [Vec<f32>; 3] {
        let [m, k, n] = SHAPE;
        [
            Random(seed + 1).normals(m * k),
            Random(seed).normals(k * n),
            Random(seed + 2).normals(m * n),
        ]
    }
    fn gradients<B: AutodiffBackend>(seed: u64) -> [Vec<f32>; 2] {
        let [x, w, g] = data(seed);
        let [_, dx, dw] = matrix_step::<B>([&x, &w, &g], SHAPE);
        [dx, dw]
    }
    let [m, k, n] = SHAPE;
    let expected: Vec<_> = (0..THREADS)
        .map(|thread| {
            let [dx, dw] = native::<B>().scope(|| gradients::<Outer<B>>(10 * thread));
            let [x, w, g] = data(10 * thread);
            let (w, x) = (transpose(&w, [k, n]), transpose(&x, [m, k]));
            let (f32, g) = (FloatDType::F32, Operand(&g, E5M2));
            assert_sample::<B>(&dx, [g, Operand(&w, E4M3)], [m, n, k], f32, "dx");
            assert_sample::<B>(&dw, [Operand(&x, E4M3), g], [k, m, n], f32, "dw");
            [dx, dw].map(|grad| bits(&grad))
        })
        .collect();
    std::thread::scope(|scope| {
        for (thread, expected) in (0..THREADS).zip(&expected) {
            scope.spawn(move || {
                native::<B>().scope(|| {
                    for _ in 0..fewer::<B>(50) {
                        let gradients = gradients::<Outer<B>>(10 * thread);
                        assert!(gradients.map(|grad| bits(&grad)) == *expected, "{thread}");
                    }
                });
            });
        }
    });
}

on_cuda_and_rehearsed!([
    with_their_own_tensors,
    with_shared_tensors,
    with_tensors_that_travel,
    that_train_at_once,
]);
