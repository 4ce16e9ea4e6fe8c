//! The number of threads decides who computes a part of a result, and addresses how it is read: never what comes out.

use crate::common::{LAYOUTS, Layout, Operand, PAIRS, Random, Runner, bits, finite, pool};
use burn_fp8_cpu::{Codes, Epilogue, Output};
use rayon::ThreadPool;

fn pools() -> Vec<(usize, ThreadPool)> {
    [1, 2, 3, 8].map(|threads| (threads, pool(threads))).into()
}

#[track_caller]
fn assert_threads_do_not_matter(runners: &[Runner], lhs: &Operand, rhs: &Operand) {
    let epilogue = Epilogue::scaled(0.37, 1.9);
    for runner in runners {
        let mut first: Option<Vec<u32>> = None;
        for (threads, pool) in pools() {
            let y = bits(&pool.install(|| runner.product(lhs, rhs, &epilogue)));
            let first = first.get_or_insert_with(|| y.clone());
            let different = y.iter().zip(first.iter()).filter(|(y, first)| y != first).count();
            let ([m, k], n) = (lhs.shape, rhs.shape[1]);
            assert_eq!(different, 0, "{runner:?} {m}×{n}×{k} on {threads} threads");
        }
    }
}

/// Tall, wide, few rows, few columns, deep, around the sizes where products are cut.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let shapes = [
        [3000, 40, 70],
        [40, 3000, 70],
        [1, 2100, 1500],
        [2, 1500, 1100],
        [5, 1700, 1030],
        [16, 900, 1300],
        [1500, 1, 2000],
        [1100, 3, 900],
        [300, 300, 1100],
        [257, 513, 129],
        [30, 30, 3500],
        [8, 8, 8],
        [100, 100, 100],
    ];
    let mut random = Random(1);
    for (index, [m, n, k]) in shapes.into_iter().enumerate() {
        let [left, right] = PAIRS[index % 4];
        let layout = random.pick(&LAYOUTS);
        let lhs = Operand::random(&mut random, &finite(left), left, [m, k], layout);
        let runners = if m * n * k < 9_000_000 { Runner::all() } else { Runner::units() };
        // Products with few rows go through the right operand as it lies.
        let others = if m <= 16 { LAYOUTS.to_vec() } else { vec![random.pick(&LAYOUTS)] };
        for other in others {
            let rhs = Operand::random(&mut random, &finite(right), right, [k, n], other);
            assert_threads_do_not_matter(&runners, &lhs, &rhs);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits_of_a_batch() {
    let mut random = Random(2);
    for (batch, [m, n, k]) in
        [(7, [60, 70, 500]), (3, [1, 600, 1200]), (40, [33, 35, 64]), (2, [300, 260, 90])]
    {
        let [left, right] = random.pick(&PAIRS);
        let a = random.picks(&finite(left), batch * m * k);
        let b = random.picks(&finite(right), batch * k * n);
        let lhs = Operand::batch(a, left, batch, [m, k], Layout::Rows);
        let one = Operand::new(b[..k * n].to_vec(), right, [k, n], Layout::Rows).broadcast(batch);
        let rhs = Operand::batch(b, right, batch, [k, n], Layout::Transposed);
        assert_threads_do_not_matter(&Runner::units(), &lhs, &rhs);
        assert_threads_do_not_matter(&Runner::units(), &lhs, &one);
    }
}

/// Blocks of K are 1024 on AVX-512 and 512 on AMX, so that their order could depend on the cut only here.
#[test]
fn a_row_does_not_depend_on_the_rows_computed_with_it() {
    let mut random = Random(3);
    let [left, right] = PAIRS[0];
    let [m, n, k] = [600, 70, 1300];
    let lhs = Operand::random(&mut random, &finite(left), left, [m, k], Layout::Rows);
    let rhs = Operand::random(&mut random, &finite(right), right, [k, n], Layout::Rows);
    let epilogue = Epilogue::scaled(0.37, 1.9);
    for runner in Runner::units() {
        let whole = bits(&runner.product(&lhs, &rhs, &epilogue));
        // As many rows at least as products of few rows have, which may be summed in an order of their own.
        for (first, rows) in [(0, 64), (70, 130), (599 - 255, 256)] {
            let part = lhs.codes[first * k..][..rows * k].to_vec();
            let part = Operand::new(part, left, [rows, k], Layout::Rows);
            let part = bits(&runner.product(&part, &rhs, &epilogue));
            let same = part == whole[first * n..][..rows * n];
            println!("{runner:?}: {rows} rows from {first} on give the same bits: {same}");
            // The crate `gemm` promises no order of sums.
            assert!(
                same || runner == Runner::Unit(burn_fp8_cpu::Unit::Portable),
                "{runner:?} {rows}"
            );
        }
    }
}

/// Products with few rows read the right operand in tiles that begin where cache lines do.
#[test]
fn a_product_does_not_depend_on_addresses() {
    let mut random = Random(5);
    let [left, right] = PAIRS[0];
    for [m, n, k] in [[1, 1024, 70], [5, 576, 600], [7, 640, 90], [40, 576, 90]] {
        let a = random.picks(&finite(left), m * k);
        let b = random.picks(&finite(right), k * n);
        let mut memory = vec![0; k * n + 128];
        for runner in Runner::units() {
            let mut at = |offset: usize| {
                let start = 64 + offset - memory.as_ptr().addr() % 64;
                memory[start..][..k * n].copy_from_slice(&b);
                let rhs = Codes::rows(&memory[start..][..k * n], right, [k, n]);
                let mut y = vec![f32::NAN; m * n];
                let lhs = Codes::rows(&a, left, [m, k]);
                runner.run(lhs, rhs, &crate::common::PLAIN, Output::F32(&mut y));
                bits(&y)
            };
            let expected = at(0);
            for offset in [1, 16, 48, 63] {
                assert!(at(offset) == expected, "{runner:?} {m}×{n}×{k} at {offset}");
            }
        }
    }
}

/// Products that run at the same time on the threads of one pool, as inside of a parallel loop of the caller.
#[test]
fn products_inside_of_parallel_tasks_do_not_disturb_each_other() {
    use rayon::prelude::*;
    let mut random = Random(4);
    let [left, right] = PAIRS[3];
    let [m, n, k] = [150, 170, 120];
    let lhs = Operand::random(&mut random, &finite(left), left, [m, k], Layout::Rows);
    let rhs = Operand::random(&mut random, &finite(right), right, [k, n], Layout::Transposed);
    for runner in Runner::units() {
        let alone = bits(&runner.product(&lhs, &rhs, &crate::common::PLAIN));
        for (threads, pool) in pools() {
            let same = pool.install(|| {
                (0..24).into_par_iter().all(|_| {
                    let mut y = vec![f32::NAN; m * n];
                    runner.run(lhs.view(), rhs.view(), &crate::common::PLAIN, Output::F32(&mut y));
                    bits(&y) == alone
                })
            });
            assert!(same, "{runner:?} on {threads} threads");
        }
    }
}
