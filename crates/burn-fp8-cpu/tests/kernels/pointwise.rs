//! Operations on single elements against f64, and dropout against the generator that decides it.

use burn_fp8_core::{Dropout, MlpActivation, Pointwise};
use burn_fp8_cpu::dropout::keep;
use burn_fp8_cpu::{gated, gated_backward, pointwise, pointwise_backward};
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

/// To the bit what the activation, its gradient and products give, whatever tasks and vectors they lie in.
#[test]
fn gates_are_activations_times_what_they_are_for() {
    on_all_instructions(|| {
        for (count, of) in [0, 1, 40, 70_000]
            .map(|count| [MlpActivation::Gelu, MlpActivation::Silu].map(|of| (count, of)))
            .concat()
        {
            let [gate, up, grad] = [1, 2, 3].map(|seed| Random(seed).betweens(-10.0, 10.0, count));
            let [mut y, mut of_gate, mut of_up] = [(); 3].map(|()| vec![f32::NAN; count]);
            gated(of, [&gate, &up], &mut y);
            gated_backward(of, [&gate, &up, &grad], [&mut of_gate, &mut of_up]);
            let [mut activated, mut slopes] = [(); 2].map(|()| vec![f32::NAN; count]);
            let times =
                |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>();
            pointwise(of.into(), &gate, &mut activated);
            pointwise_backward(of.into(), &gate, &times(&grad, &up), &mut slopes);
            assert_eq!(bits(&y), bits(&times(&activated, &up)), "{of:?}");
            assert_eq!(bits(&of_gate), bits(&slopes), "{of:?}");
            assert_eq!(bits(&of_up), bits(&times(&grad, &activated)), "{of:?}");
        }
    });
}

#[test]
#[should_panic(expected = "an operation on 2 elements was given 3")]
fn a_gate_of_another_length_is_refused() {
    gated(MlpActivation::Gelu, [&[0.0; 2], &[0.0; 3]], &mut [0.0; 2]);
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
