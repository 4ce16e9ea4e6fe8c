//! Products of small integers: every sum is an f32, so every unit, layout and order must give the same bits.

use crate::common::{
    Exact, LAYOUTS, Layout, Operand, PAIRS, PLAIN, Random, Runner, exact, integers,
};
use burn_fp8_cpu::{Codes, Epilogue, Output};

#[track_caller]
fn assert_exact(runner: Runner, lhs: &Operand, rhs: &Operand, expected: &Exact) {
    let y = runner.product(lhs, rhs, &PLAIN);
    if let Some(error) = expected.inexact(&y) {
        let ([m, k], n) = (lhs.shape, rhs.shape[1]);
        let (left, right) = ((lhs.format, lhs.layout), (rhs.format, rhs.layout));
        panic!("{runner:?} {m}×{n}×{k} {left:?} {right:?}: {error}");
    }
}

#[test]
fn integers_are_multiplied_exactly_in_all_formats_and_layouts() {
    let shapes = [[1, 1, 1], [1, 33, 129], [15, 1, 64], [31, 45, 70], [29, 97, 193], [65, 34, 40]];
    let mut random = Random(1);
    for [left, right] in PAIRS {
        for [m, n, k] in shapes {
            let a = random.picks(&integers(left), m * k);
            let b = random.picks(&integers(right), k * n);
            for lhs_layout in LAYOUTS {
                for rhs_layout in LAYOUTS {
                    let lhs = Operand::new(a.clone(), left, [m, k], lhs_layout);
                    let rhs = Operand::new(b.clone(), right, [k, n], rhs_layout);
                    let expected = exact(&lhs, &rhs);
                    for runner in Runner::all() {
                        assert_exact(runner, &lhs, &rhs, &expected);
                    }
                }
            }
        }
    }
}

#[test]
fn sums_go_on_from_one_block_of_k_to_the_next() {
    let mut random = Random(2);
    let shapes = [
        [30, 70, 1023],
        [33, 31, 1025],
        [5, 40, 2048],
        [70, 33, 2500],
        [1, 65, 2500],
        [300, 280, 1100],
        [257, 513, 600],
        // Few rows, of a right operand that is not expected in the cache.
        [20, 2100, 2000],
    ];
    for (index, [m, n, k]) in shapes.into_iter().enumerate() {
        for pair in 0..2 {
            let [left, right] = PAIRS[(index + 2 * pair) % 4];
            let layouts = [LAYOUTS[index % 4], LAYOUTS[(index + pair) % 4]];
            let lhs = Operand::random(&mut random, &integers(left), left, [m, k], layouts[0]);
            let rhs = Operand::random(&mut random, &integers(right), right, [k, n], layouts[1]);
            let expected = exact(&lhs, &rhs);
            let runners = if m * n < 100 * 100 { Runner::all() } else { Runner::units() };
            for runner in runners {
                assert_exact(runner, &lhs, &rhs, &expected);
            }
        }
    }
}

#[test]
fn batches_are_multiplied_one_by_one() {
    let mut random = Random(3);
    for [left, right] in PAIRS {
        for ([m, n, k], batch) in [([17, 40, 66], 3), ([1, 7, 5], 9), ([64, 33, 130], 2)] {
            for layout in [Layout::Rows, Layout::Transposed] {
                for other in [Layout::Rows, Layout::Transposed] {
                    let a = random.picks(&integers(left), batch * m * k);
                    let b = random.picks(&integers(right), batch * k * n);
                    let lhs = Operand::batch(a, left, batch, [m, k], layout);
                    let rhs = Operand::batch(b, right, batch, [k, n], other);
                    let expected = exact(&lhs, &rhs);
                    for runner in Runner::all() {
                        assert_exact(runner, &lhs, &rhs, &expected);
                    }
                }
            }
        }
    }
}

#[test]
fn one_matrix_can_be_an_operand_of_each_product_of_a_batch() {
    let mut random = Random(4);
    let ([m, n, k], batch) = ([19, 37, 70], 4);
    for [left, right] in PAIRS {
        let a = random.picks(&integers(left), batch * m * k);
        let b = random.picks(&integers(right), batch * k * n);
        for layout in LAYOUTS {
            let lhs = Operand::batch(a.clone(), left, batch, [m, k], Layout::Rows);
            let rhs = Operand::batch(b.clone(), right, batch, [k, n], Layout::Transposed);
            let one_lhs = Operand::new(a[..m * k].to_vec(), left, [m, k], layout).broadcast(batch);
            let one_rhs = Operand::new(b[..k * n].to_vec(), right, [k, n], layout).broadcast(batch);
            for (lhs, rhs) in [(&lhs, &one_rhs), (&one_lhs, &rhs), (&one_lhs, &one_rhs)] {
                let expected = exact(lhs, rhs);
                for runner in Runner::all() {
                    assert_exact(runner, lhs, rhs, &expected);
                }
            }
        }
    }
}

#[test]
fn powers_of_two_as_scales_change_exponents_only() {
    let mut random = Random(5);
    let [m, n, k] = [31, 66, 1300];
    for [left, right] in PAIRS {
        let lhs = Operand::random(&mut random, &integers(left), left, [m, k], Layout::Rows);
        let rhs = Operand::random(&mut random, &integers(right), right, [k, n], Layout::Rows);
        let expected = exact(&lhs, &rhs);
        for [first, second] in [[0.5, 4.0], [2f32.powi(-40), 2f32.powi(-50)], [2f32.powi(90), 0.25]]
        {
            for runner in Runner::all() {
                let y = runner.product(&lhs, &rhs, &Epilogue::scaled(first, second));
                let scale = f64::from(first) * f64::from(second);
                assert_eq!(
                    expected.clone().times(scale).inexact(&y),
                    None,
                    "{runner:?} {left} {right}"
                );
            }
        }
    }
}

/// One changed code out of the smallest distance from its neighbours must be seen, whatever its place.
#[test]
fn a_single_wrong_code_is_noticed() {
    let mut random = Random(6);
    let [left, right] = PAIRS[0];
    let nonzero: Vec<_> = integers(right).into_iter().filter(|code| code & 0x7F != 0).collect();
    let lhs = Operand::random(&mut random, &integers(left), left, [20, 90], Layout::Rows);
    let rhs = Operand::random(&mut random, &nonzero, right, [90, 40], Layout::Rows);
    let expected = exact(&lhs, &rhs);
    for place in [0, 89, 90 * 19, 90 * 20 - 1, 777] {
        let mut codes = lhs.codes.clone();
        codes[place] ^= if codes[place] & 0x7F == 0 { 0x38 } else { 0x80 };
        let changed = Operand::new(codes, left, [20, 90], Layout::Rows);
        for runner in Runner::all() {
            let y = runner.product(&changed, &rhs, &PLAIN);
            assert!(expected.inexact(&y).is_some(), "{runner:?} {place}");
        }
    }
}

/// Windows of one memory, which overlap, repeat and go back, as the operands of a batch.
#[test]
fn matrices_of_a_batch_can_begin_anywhere() {
    let mut random = Random(7);
    let ([m, n, k], starts) = ([9, 33, 40], [100, 3, 3, 0, 577]);
    for [left, right] in PAIRS {
        let a = random.picks(&integers(left), 1000 + 64 * k);
        let b = random.picks(&integers(right), starts.len() * k * n);
        let rhs = Operand::batch(b, right, starts.len(), [k, n], Layout::Rows);
        for (stride, transposed) in [(k, false), (k + 7, false), (m, true), (m + 4, true)] {
            let lines = if transposed { [k, m] } else { [m, k] };
            let memory = Codes::strided(&a, left, lines, stride);
            let view = if transposed { memory.transpose() } else { memory }.starting_at(&starts);
            let element = |start: usize, row: usize, l: usize| match transposed {
                true => a[start + l * stride + row],
                false => a[start + row * stride + l],
            };
            let each = starts.iter().flat_map(|start| {
                (0..m * k).map(move |index| element(*start, index / k, index % k))
            });
            let lhs = Operand::batch(each.collect(), left, starts.len(), [m, k], Layout::Rows);
            let expected = exact(&lhs, &rhs);
            for runner in Runner::all() {
                let mut y = vec![f32::NAN; starts.len() * m * n];
                runner.run(view, rhs.view(), &PLAIN, Output::F32(&mut y));
                assert_eq!(expected.inexact(&y), None, "{runner:?} {stride} {transposed}");
            }
        }
    }
}

/// One matrix that does not begin at the first code is still that matrix where it is broadcast.
#[test]
fn a_matrix_that_begins_elsewhere_can_be_broadcast() {
    let mut random = Random(8);
    let ([m, n, k], batch, start) = ([5, 40, 33], 3, 71);
    let [left, right] = PAIRS[0];
    let memory = random.picks(&integers(right), start + k * n);
    let lhs = Operand::batch(
        random.picks(&integers(left), batch * m * k),
        left,
        batch,
        [m, k],
        Layout::Rows,
    );
    let starts = [start];
    let one = Codes::strided(&memory, right, [k, n], n).starting_at(&starts).broadcast(batch);
    let rhs = Operand::new(memory[start..].to_vec(), right, [k, n], Layout::Rows).broadcast(batch);
    let expected = exact(&lhs, &rhs);
    for runner in Runner::all() {
        let mut y = vec![f32::NAN; batch * m * n];
        runner.run(lhs.view(), one, &PLAIN, Output::F32(&mut y));
        assert_eq!(expected.inexact(&y), None, "{runner:?}");
    }
}
