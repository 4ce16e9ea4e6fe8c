//! The same from several threads, which have streams of their own in CubeCL: with tensors of their own, with shared ones, and
//! with tensors that travel between threads before they are computed.

use std::sync::mpsc;

use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::stress::{Pair, round, run, serial, serial_as_configured};
use crate::support::{Operand, assert_sample, fewer, native};

const THREADS: u64 = 4;
const ITERATIONS: usize = 1000;
const ROUNDS: usize = 300;

/// Rounds on several threads at once, each with the pairs that it makes or is given.
fn at_once<B: Fp8Matmul>(pairs: impl Fn(u64) -> Vec<Pair<Fp8Backend<B>>> + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pairs = &pairs;
            scope.spawn(move || {
                let (pairs, what) = (pairs(thread), format!("thread {thread}"));
                native::<B>().scope(|| run(&pairs, thread, fewer::<B>(ITERATIONS), &what));
            });
        }
    });
}

fn with_their_own_tensors<B: Fp8Matmul>() {
    at_once::<B>(serial::<B>);
}

/// Operands and expected results that another thread made.
fn with_shared_tensors<B: Fp8Matmul>() {
    let pairs = serial::<B>(7);
    at_once::<B>(|_| pairs.clone());
}

/// Operands that another thread has only enqueued, and frees at once. CubeCL 0.10 itself may give memory to another stream before
/// that which uses it is done: products without FP8 are the control, and ours may fail about as often as these, not where none does.
/// Where each thread waits for what it made, CubeCL has nothing to mistake, and nothing is excused.
fn with_tensors_that_travel<B: Fp8Matmul>() {
    let (rounds, config) = (fewer::<B>(ROUNDS), native::<B>());
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
        let worker = |thread| {
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
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        let mut random = Random(1);
        for _ in 0..rounds {
            let pair = &pairs[random.below(pairs.len())];
            for worker in &workers {
                let [half_x, half_w, y] = [&pair.half_x, &pair.half_w, &pair.y]
                    .map(|tensor: &Tensor<B, 2>| (tensor.clone() * 2.0) * 0.5);
                settle();
                worker.send(Pair { half_x, half_w, y }).expect("the worker listens");
            }
            // Results come back as they are: enqueued, unless waited for. All of them are taken, also after one that is wrong.
            let differences = (0..THREADS).map(|_| verdicts.recv().expect("the workers send"));
            let right: Vec<_> = differences.map(|of| values(of * 2.0) == [0.0]).collect();
            wrong += usize::from(right.contains(&false));
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
    let [m, k, n] = SHAPE;
    let data = |seed| {
        let mut random = Random(seed);
        [m * k, k * n, m * n].map(|count| random.normals(count))
    };
    let gradients = |seed| {
        let data = data(seed);
        let step = || matrix_step::<Outer<B>>(data.each_ref().map(Vec::as_slice), SHAPE);
        let [_, dx, dw] = native::<B>().scope(step);
        [dx, dw]
    };
    let expected: Vec<_> = (0..THREADS)
        .map(|thread| {
            let ([dx, dw], [x, w, g]) = (gradients(thread), data(thread));
            let (w, x) = (transpose(&w, [k, n]), transpose(&x, [m, k]));
            let (f32, g) = (FloatDType::F32, Operand(&g, E5M2));
            assert_sample::<B>(&dx, [g, Operand(&w, E4M3)], [m, n, k], f32, "dx");
            assert_sample::<B>(&dw, [Operand(&x, E4M3), g], [k, m, n], f32, "dw");
            [dx, dw].map(|grad| bits(&grad))
        })
        .collect();
    std::thread::scope(|scope| {
        for (thread, expected) in (0..THREADS).zip(&expected) {
            let gradients = &gradients;
            scope.spawn(move || {
                for _ in 0..fewer::<B>(50) {
                    let found = gradients(thread).map(|grad| bits(&grad));
                    assert!(found == *expected, "{thread}");
                }
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
