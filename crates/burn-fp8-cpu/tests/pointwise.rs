//! Operations on single elements against f64, and dropout against the generator that decides it.

use burn_fp8_core::{Dropout, Pointwise};
use burn_fp8_cpu::{pointwise, pointwise_backward};
use rayon::ThreadPoolBuilder;

/// Magnitudes from subnormal to large, both signs, and what is not finite.
fn inputs(count: usize) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-40, -1e-40, 1e30, -1e30, f32::INFINITY];
    let rest = (0..count).map(|i| ((i * 7919) % 20_011) as f32 / 1000.0 - 10.0);
    special.into_iter().chain(rest).collect()
}

fn cumulative(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x * core::f64::consts::FRAC_1_SQRT_2))
}

#[test]
fn gelu_and_its_gradient_are_as_in_f64() {
    for count in [0, 1, 40, 70_000] {
        let x = inputs(count);
        let grad: Vec<f32> = (0..x.len()).map(|i| (i % 17) as f32 - 8.0).collect();
        let (mut y, mut of_x) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
        pointwise(Pointwise::Gelu, &x, &mut y);
        pointwise_backward(Pointwise::Gelu, &x, &grad, &mut of_x);
        for (i, x) in x.iter().copied().enumerate() {
            if !x.is_finite() {
                assert_eq!(y[i], x);
                continue;
            }
            let exact = f64::from(x);
            let expected = exact * cumulative(exact);
            // 1 + erf cancels where x is negative: what is left is known to an ulp of 1.
            let bound = 4e-7 * expected.abs() + 1e-7 * exact.abs().min(10.0);
            assert!((f64::from(y[i]) - expected).abs() <= bound, "{x}: {} {expected}", y[i]);
            let density = (-0.5 * exact * exact).exp() / (2.0 * core::f64::consts::PI).sqrt();
            let expected = f64::from(grad[i]) * (cumulative(exact) + exact * density);
            let bound = 2e-6 * f64::from(grad[i]).abs();
            assert!((f64::from(of_x[i]) - expected).abs() <= bound, "{x}: {} {expected}", of_x[i]);
        }
    }
}

#[test]
fn silu_and_its_gradient_are_as_in_f64() {
    let x = inputs(70_000);
    let grad: Vec<f32> = (0..x.len()).map(|i| (i % 17) as f32 - 8.0).collect();
    let (mut y, mut of_x) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
    pointwise(Pointwise::Silu, &x, &mut y);
    pointwise_backward(Pointwise::Silu, &x, &grad, &mut of_x);
    for (i, x) in x.iter().copied().enumerate().filter(|(_, x)| x.is_finite()) {
        let exact = f64::from(x);
        let logistic = 1.0 / (1.0 + (-exact).exp());
        let expected = exact * logistic;
        // Below 2⁻¹²⁶ numbers have fewer bits.
        let bound = 5e-7 * expected.abs() + 1e-44;
        assert!((f64::from(y[i]) - expected).abs() <= bound, "{x}: {} {expected}", y[i]);
        let slope = logistic * (1.0 + exact * (1.0 - logistic));
        let expected = f64::from(grad[i]) * slope;
        let bound = 2e-6 * f64::from(grad[i]).abs();
        assert!((f64::from(of_x[i]) - expected).abs() <= bound, "{x}: {} {expected}", of_x[i]);
    }
    let of = |x: f32| {
        let mut y = [0.0];
        pointwise(Pointwise::Silu, &[x], &mut y);
        y[0]
    };
    assert_eq!(of(f32::INFINITY), f32::INFINITY);
    assert!(of(f32::NAN).is_nan());
}

#[test]
fn dropout_follows_its_groups_forward_and_backward() {
    let dropout = Dropout::new(0.3, 19).unwrap();
    let x: Vec<f32> = (1..=40_001).map(|i| i as f32).collect();
    let (mut y, mut of_x) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
    pointwise(Pointwise::Dropout(dropout), &x, &mut y);
    pointwise_backward(Pointwise::Dropout(dropout), &[], &x, &mut of_x);
    assert_eq!(y, of_x);
    for (i, x) in x.iter().copied().enumerate() {
        // Element by element, from the documentation.
        let (row, column) = (i / 512 * 64 + i % 64, i % 512 / 64);
        let mut kept = [[0f32; 8]; 8];
        dropout.keep(row as u64, 0, &mut kept);
        assert_eq!(y[i], x * (kept[column][0] * dropout.factor()), "{i}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let x = inputs(50_000);
    for operation in
        [Pointwise::Gelu, Pointwise::Silu, Pointwise::Dropout(Dropout::new(0.1, 1).unwrap())]
    {
        let run = |threads| {
            let mut y = vec![0f32; x.len()];
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| pointwise(operation, &x, &mut y));
            y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert!(run(1) == run(3));
    }
}
