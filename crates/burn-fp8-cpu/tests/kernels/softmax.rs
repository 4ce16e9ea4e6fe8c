//! Softmax of rows and its logarithm against f64; and random bits.

use burn_fp8_core::{Dropout, Softmax};
use burn_fp8_cpu::dropout::{keep_elements, keep_group};
use burn_fp8_cpu::{softmax, softmax_backward};

use crate::common::{assert_within, bits, numbers, on_all_instructions, pool};

const KINDS: [Softmax; 2] = [Softmax::Probabilities, Softmax::Logarithms];

fn pass(kind: Softmax, width: usize, x: &[f32], grad: &[f32]) -> [Vec<f32>; 2] {
    let [mut y, mut of_x] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
    softmax(kind, width, x, &mut y);
    softmax_backward(kind, width, &y, grad, &mut of_x);
    [y, of_x]
}

/// The same in f64.
fn exact(kind: Softmax, x: &[f32], grad: &[f32]) -> [Vec<f64>; 2] {
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().copied().map(f64::from).collect() };
    let (x, grad) = (wide(x), wide(grad));
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|x| (x - largest).exp()).sum();
    let logarithms: Vec<f64> = x.iter().map(|x| x - largest - total.ln()).collect();
    let y: Vec<f64> = logarithms.iter().map(|x| x.exp()).collect();
    let along: f64 = y.iter().zip(&grad).map(|(y, grad)| y * grad).sum();
    let all: f64 = grad.iter().sum();
    let pairs = y.iter().zip(&grad);
    match kind {
        Softmax::Probabilities => {
            let of_x = pairs.map(|(y, grad)| y * (grad - along)).collect();
            [y, of_x]
        }
        Softmax::Logarithms => [logarithms, pairs.map(|(y, grad)| grad - y * all).collect()],
    }
}

#[test]
fn rows_and_their_gradients_are_as_in_f64() {
    on_all_instructions(|| {
        // One element, odd widths, rows of several tasks and of more than one; spread so far that most probabilities are 0.
        for (rows, width, spread) in
            [(3, 1, 1.0), (5, 7, 1.0), (300, 96, 10.0), (1000, 130, 1e3), (2, 20_000, 3.0)]
        {
            let x: Vec<f32> = numbers(rows * width, 1).iter().map(|x| x * spread).collect();
            let grad = numbers(rows * width, 2);
            for kind in KINDS {
                let [y, of_x] = pass(kind, width, &x, &grad);
                let rows = x.chunks(width).zip(grad.chunks(width));
                for (row, (x, grad)) in rows.enumerate() {
                    let [exact_y, exact_of_x] = exact(kind, x, grad);
                    let at = row * width..(row + 1) * width;
                    let near = |found: &[f32], exact: &[f64], what| {
                        assert_within(found, exact, |x| 1e-5 * x.abs().max(0.1), what);
                    };
                    near(&y[at.clone()], &exact_y, "results");
                    // A sum of all gradients, rounded as f32.
                    let scale = grad.iter().map(|x| f64::from(x.abs())).sum::<f64>();
                    assert_within(&of_x[at], &exact_of_x, |x| 1e-6 * (x.abs() + scale), "gradient");
                }
            }
        }
    });
}

#[test]
fn rows_with_infinities_and_nan_are_as_arithmetic_has_them() {
    const INF: f32 = f32::INFINITY;
    on_all_instructions(|| {
        for width in [3, 40] {
            let row = |first: f32, rest: f32| -> Vec<f32> {
                (0..width).map(|at| if at == 1 { first } else { rest }).collect()
            };
            let of = |kind, x: &[f32]| pass(kind, width, x, &vec![1.0; width])[0].clone();
            let [probabilities, logarithms] = KINDS;
            // What is masked by -∞ gets nothing.
            assert_eq!(of(probabilities, &row(2.0, -INF)), row(1.0, 0.0));
            assert_eq!(of(logarithms, &row(2.0, -INF)), row(0.0, -INF));
            for x in [row(f32::NAN, 1.0), row(INF, 1.0), row(-INF, -INF)] {
                let all_nan = |y: &[f32]| y.iter().all(|y| y.is_nan());
                assert!(x[1] == INF || KINDS.iter().all(|kind| all_nan(&of(*kind, &x))), "{x:?}");
            }
            // As in Burn: ∞ less itself.
            assert!(of(probabilities, &row(INF, 1.0))[1].is_nan());
        }
        for kind in KINDS {
            assert!(pass(kind, 0, &[], &[]).iter().all(Vec::is_empty));
        }
    });
}

#[test]
fn threads_change_no_bit() {
    let (x, grad) = (numbers(700 * 130, 3), numbers(700 * 130, 4));
    for kind in KINDS {
        let on = |threads| pool(threads).install(|| pass(kind, 130, &x, &grad).map(|y| bits(&y)));
        assert_eq!(on(1), on(3));
    }
}

#[test]
#[should_panic(expected = "rows of 7")]
fn rows_that_do_not_fit_are_refused() {
    softmax(Softmax::Probabilities, 7, &[0.0; 15], &mut [0.0; 15]);
}

/// Bits of a whole tensor are those of its groups, with a last one that is not whole, on any number of threads.
#[test]
fn kept_elements_are_those_of_groups() {
    let dropout = Dropout::new(0.3, 5).expect("a probability");
    let mut kept = vec![f32::NAN; 70 * Dropout::GROUP + 11];
    for threads in [1, 3] {
        pool(threads).install(|| keep_elements(dropout, &mut kept));
        for (index, kept) in kept.chunks(Dropout::GROUP).enumerate() {
            let mut group = [[f32::NAN; Dropout::ROWS]; Dropout::COLUMNS];
            keep_group(dropout, index as u64, &mut group);
            assert_eq!(kept, &group.as_flattened()[..kept.len()]);
        }
    }
    let share = kept.iter().sum::<f32>() / kept.len() as f32;
    assert!((share - 0.7).abs() < 0.01, "{share}");
}
