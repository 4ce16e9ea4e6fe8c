//! Normalization against f64.

use burn_fp8_core::Norm;
use burn_fp8_cpu::{Normalization, normalize, normalize_backward};
use burn_fp8_test_support::operations;

use crate::common::{assert_within, bits, numbers, on_all_instructions, pool};

const NORMS: [Norm; 2] = [Norm::Layer, Norm::Rms];

/// Without beta.
fn of(norm: Norm, gamma: &[f32]) -> Normalization<'_> {
    Normalization { norm, gamma, beta: None, epsilon: 1e-5 }
}

/// The results, and the gradients of the input, of gamma and of beta.
struct Pass {
    y: Vec<f32>,
    of_x: Vec<f32>,
    of_gamma: Vec<f32>,
    of_beta: Vec<f32>,
}

fn pass(norm: &Normalization<'_>, x: &[f32], grad: &[f32]) -> Pass {
    let width = norm.gamma.len();
    let [mut y, mut of_x] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
    let [mut of_gamma, mut of_beta] = [(); 2].map(|()| vec![f32::NAN; width]);
    normalize(norm, x, &mut y);
    normalize_backward(norm, x, grad, &mut of_x, [&mut of_gamma, &mut of_beta]);
    Pass { y, of_x, of_gamma, of_beta }
}

#[test]
fn rows_and_their_gradients_are_as_in_f64() {
    on_all_instructions(|| {
        // Odd widths, one element, rows of several tasks and of more than one; far from zero, where a mean of squares would cancel.
        let cases =
            [(3, 1, 0.0), (5, 7, 0.0), (300, 96, 2.0), (1000, 130, 1000.0), (3, 20_000, 0.5)];
        let all = cases.into_iter().flat_map(|case| NORMS.map(|norm| (case, norm)));
        for ((rows, width, offset), norm) in all {
            let x: Vec<f32> = numbers(rows * width, 1).iter().map(|x| x + offset).collect();
            let (grad, gamma, beta) =
                (numbers(rows * width, 2), numbers(width, 3), numbers(width, 4));
            let with_beta = Normalization { beta: Some(&beta), ..of(norm, &gamma) };
            let pass = pass(&with_beta, &x, &grad);

            let exact = operations::Normalized::new(norm, [&x, &grad], [&gamma, &beta], 1e-5);
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
    let with = |beta| pass(&Normalization { beta, ..of(Norm::Layer, &gamma) }, &x, &x).y;
    assert_eq!(with(None), with(Some(&[0.0; 10])));
    let one: Vec<_> = with(None).iter().map(|y| y + 1.0).collect();
    assert_eq!(one, with(Some(&[1.0; 10])));
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut x = numbers(40, 1);
    (x[3], x[17]) = (f32::NAN, f32::INFINITY);
    for norm in NORMS {
        let Pass { y, of_x, .. } = pass(&of(norm, &[1.0; 10]), &x, &numbers(40, 2));
        // Over an infinite root what is finite becomes 0, unless a mean was infinite.
        let lost = |row: &[f32]| row.iter().all(|y| y.is_nan() || *y == 0.0 && norm == Norm::Rms);
        assert!(lost(&y[..20]) && y[3].is_nan() && y[17].is_nan(), "{norm:?}: {y:?}");
        assert!(of_x[..10].iter().all(|x| x.is_nan()) && of_x[17].is_nan(), "{norm:?}: {of_x:?}");
        assert!([y, of_x].iter().all(|values| values[20..].iter().all(|y| y.is_finite())));
    }
}

/// Rows of one number: the mean is all of it, and the root its size. Rows of zeros stay so, with gradients of the number that epsilon leaves.
#[test]
fn rows_of_equal_numbers_are_zeros_or_ones() {
    let (gamma, grad) = (numbers(37, 3), numbers(37, 4));
    for (norm, x, size) in [
        (Norm::Layer, 3.0, 0.0),
        (Norm::Rms, -3.0, -1.0),
        (Norm::Layer, 0.0, 0.0),
        (Norm::Rms, 0.0, 0.0),
    ] {
        let x = [x; 37];
        let Pass { y, of_x, .. } = pass(&of(norm, &gamma), &x, &grad);
        let exact = operations::Normalized::new(norm, [&x, &grad], [&gamma, &[0.0; 37]], 1e-5);
        for (y, gamma) in y.iter().zip(&gamma) {
            assert!((y - size * gamma).abs() < 1e-5, "{norm:?}: {y}");
        }
        assert_within(&of_x, &exact.of_x, |x| 1e-5 * x.abs().max(1.0), "gradients");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let (x, grad, gamma) = (numbers(90_000, 1), numbers(90_000, 2), numbers(100, 3));
    let run = |threads| {
        let norm = of(Norm::Layer, &gamma);
        let Pass { y, of_x, of_gamma, of_beta } = pool(threads).install(|| pass(&norm, &x, &grad));
        bits(&[y, of_x, of_gamma, of_beta].concat())
    };
    assert!(run(1) == run(3));
}

#[test]
fn empty_rows_are_nothing() {
    assert!(pass(&of(Norm::Layer, &[]), &[], &[]).y.is_empty());
    let Pass { y, of_gamma, .. } = pass(&of(Norm::Rms, &[1.0; 4]), &[], &[]);
    assert!(y.is_empty() && of_gamma == [0.0; 4]);
}

#[test]
#[should_panic(expected = "RMS normalization of rows of 4 was given [6, 6] elements")]
fn rows_must_be_whole() {
    normalize(&of(Norm::Rms, &[1.0; 4]), &[0.0; 6], &mut [0.0; 6]);
}
