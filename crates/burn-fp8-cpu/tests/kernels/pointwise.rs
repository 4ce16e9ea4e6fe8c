//! Operations on single elements against f64, and dropout against the generator that decides it.

use burn_fp8_core::{Dropout, Pointwise};
use burn_fp8_cpu::dropout::keep;
use burn_fp8_cpu::{pointwise, pointwise_backward};
use burn_fp8_test_support::operations::Function;

use crate::common::{Random, assert_within, bits, on_all_instructions, pool};

/// Magnitudes from subnormal to large, both signs, and what is not finite.
fn inputs(count: usize) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-40, -1e-40, 1e30, -1e30, f32::INFINITY];
    let mut random = Random(1);
    let rest = (0..count).map(|_| random.between(-10.0, 10.0));
    special.into_iter().chain(rest).collect()
}

/// Results and gradients: a function, how far a result may be from the exact one by that and by its input, and what comes of infinity.
#[test]
fn functions_and_their_gradients_are_as_in_f64() {
    on_all_instructions(|| {
        for count in [0, 1, 40, 70_000] {
            // 1 + erf cancels where x is negative: what is left is known to an ulp of 1.
            let of_gelu = |y: f64, x: f64| 4e-7 * y.abs() + 1e-7 * x.abs().min(10.0);
            check(Pointwise::Gelu, Function::Gelu, count, of_gelu);
            // Below 2⁻¹²⁶ numbers have fewer bits.
            check(Pointwise::Silu, Function::Silu, count, |y, _| 5e-7 * y.abs() + 1e-44);
        }
    });
}

fn check(operation: Pointwise, exact: Function, count: usize, bound: impl Fn(f64, f64) -> f64) {
    let x = inputs(count);
    let grad: Vec<f32> = (0..x.len()).map(|i| (i % 17) as f32 - 8.0).collect();
    let (mut y, mut of_x) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
    pointwise(operation, &x, &mut y);
    pointwise_backward(operation, &x, &grad, &mut of_x);
    for (i, x) in x.iter().copied().enumerate() {
        if !x.is_finite() {
            assert_eq!(y[i], x, "{operation:?}");
            continue;
        }
        let (wide, what) = (f64::from(x), format!("{operation:?} of {x}"));
        assert_within(&y[i..=i], &[exact.of(wide)], |y| bound(y, wide), &what);
        let slope = f64::from(grad[i]) * exact.slope(wide);
        assert_within(&of_x[i..=i], &[slope], |_| 2e-6 * f64::from(grad[i]).abs(), &what);
    }
    let mut nan = [0.0];
    pointwise(operation, &[f32::NAN], &mut nan);
    assert!(nan[0].is_nan(), "{operation:?}");
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
        keep(dropout, row as u64, 0, &mut kept);
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
            pool(threads).install(|| pointwise(operation, &x, &mut y));
            bits(&y)
        };
        assert!(run(1) == run(3));
    }
}
