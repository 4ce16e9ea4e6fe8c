//! Layer normalization against f64.

use burn_fp8_cpu::{LayerNorm, layer_norm, layer_norm_backward};
use burn_fp8_test_support::operations;

use crate::common::{assert_within, bits, numbers, on_all_instructions, pool};

/// The results, and the gradients of the input, of gamma and of beta.
struct Pass {
    y: Vec<f32>,
    of_x: Vec<f32>,
    of_gamma: Vec<f32>,
    of_beta: Vec<f32>,
}

fn pass(norm: &LayerNorm<'_>, x: &[f32], grad: &[f32]) -> Pass {
    let width = norm.gamma.len();
    let [mut y, mut of_x] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
    let [mut of_gamma, mut of_beta] = [(); 2].map(|()| vec![f32::NAN; width]);
    layer_norm(norm, x, &mut y);
    layer_norm_backward(norm, x, grad, &mut of_x, [&mut of_gamma, &mut of_beta]);
    Pass { y, of_x, of_gamma, of_beta }
}

#[test]
fn rows_and_their_gradients_are_as_in_f64() {
    on_all_instructions(|| {
        // Odd widths, one element, rows of several tasks and of more than one; far from zero, where a mean of squares would cancel.
        let cases =
            [(3, 1, 0.0), (5, 7, 0.0), (300, 96, 2.0), (1000, 130, 1000.0), (3, 20_000, 0.5)];
        for (rows, width, offset) in cases {
            let x: Vec<f32> = numbers(rows * width, 1).iter().map(|x| x + offset).collect();
            let (grad, gamma, beta) =
                (numbers(rows * width, 2), numbers(width, 3), numbers(width, 4));
            let norm = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-5 };
            let pass = pass(&norm, &x, &grad);

            let exact = operations::LayerNorm::new([&x, &grad], [&gamma, &beta], 1e-5);
            // Numbers around 1,000 have an ulp of 6e-5, which is what a mean can be wrong by.
            let bound = if offset > 100.0 { 1e-3 } else { 1e-5 };
            let near = |found: &[f32], exact: &[f64], bound: f64, what| {
                assert_within(found, exact, |x| bound * x.abs().max(1.0), what);
            };
            near(&pass.y, &exact.y, bound, "results");
            near(&pass.of_x, &exact.of_x, bound, "gradient of the input");
            // Sums of up to 1,000 numbers.
            near(&pass.of_gamma, &exact.of_gamma, bound * 10.0, "gradient of gamma");
            near(&pass.of_beta, &exact.of_beta, 1e-4, "gradient of beta");
        }
    });
}

#[test]
fn without_beta_nothing_is_added() {
    let (x, gamma) = (numbers(30, 1), numbers(10, 2));
    let with = |beta| pass(&LayerNorm { gamma: &gamma, beta, epsilon: 1e-5 }, &x, &x).y;
    assert_eq!(with(None), with(Some(&[0.0; 10])));
    let one: Vec<_> = with(None).iter().map(|y| y + 1.0).collect();
    assert_eq!(one, with(Some(&[1.0; 10])));
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut x = numbers(40, 1);
    (x[3], x[17]) = (f32::NAN, f32::INFINITY);
    let norm = LayerNorm { gamma: &[1.0; 10], beta: None, epsilon: 1e-5 };
    let Pass { y, of_x, .. } = pass(&norm, &x, &numbers(40, 2));
    for values in [y, of_x] {
        assert!(
            values[..20].iter().all(|y| y.is_nan()) && values[20..].iter().all(|y| y.is_finite())
        );
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let (x, grad, gamma) = (numbers(90_000, 1), numbers(90_000, 2), numbers(100, 3));
    let run = |threads| {
        let norm = LayerNorm { gamma: &gamma, beta: None, epsilon: 1e-5 };
        let Pass { y, of_x, of_gamma, of_beta } = pool(threads).install(|| pass(&norm, &x, &grad));
        bits(&[y, of_x, of_gamma, of_beta].concat())
    };
    assert!(run(1) == run(3));
}

#[test]
fn empty_rows_are_nothing() {
    let norm = LayerNorm { gamma: &[], beta: None, epsilon: 1e-5 };
    assert!(pass(&norm, &[], &[]).y.is_empty());
    let gamma = [1.0; 4];
    let Pass { y, of_gamma, .. } = pass(&LayerNorm { gamma: &gamma, ..norm }, &[], &[]);
    assert!(y.is_empty() && of_gamma == [0.0; 4]);
}

#[test]
#[should_panic(expected = "rows of 4 was given [6, 6] elements")]
fn rows_must_be_whole() {
    layer_norm(
        &LayerNorm { gamma: &[1.0; 4], beta: None, epsilon: 1e-5 },
        &[0.0; 6],
        &mut [0.0; 6],
    );
}
