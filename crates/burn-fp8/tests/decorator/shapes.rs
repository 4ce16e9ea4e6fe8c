//! Shapes that do not multiply, with FP8 on and off.

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8::{Fp8Backend, Fp8Config};

use crate::common::panic_of;

fn ones<B: Backend, const D: usize>(shape: [usize; D]) -> FloatTensor<B> {
    Tensor::<B, D>::ones(shape, &Default::default()).into_primitive().tensor()
}

/// What each product says of operands whose shapes do not fit.
fn misfits<B: Backend>() -> Vec<(String, &'static str)> {
    let linear = |x: [usize; 3], weight: [usize; 2]| {
        panic_of(|| B::linear(ones::<B, 3>(x), ones::<B, 2>(weight), None))
    };
    let x_backward = |weight: [usize; 2], output_grad: [usize; 3]| {
        panic_of(|| B::linear_x_backward(ones::<B, 2>(weight), ones::<B, 3>(output_grad)))
    };
    let weight_backward = |x: [usize; 3], output_grad: [usize; 3]| {
        panic_of(|| B::linear_weight_backward(ones::<B, 3>(x), ones::<B, 3>(output_grad)))
    };
    let matmul = |x: [usize; 3], y: [usize; 3]| {
        panic_of(|| B::float_matmul(ones::<B, 3>(x), ones::<B, 3>(y)))
    };
    vec![
        (matmul([2, 16, 16], [3, 16, 16]), "[2, 16, 16] and [3, 16, 16]"),
        (matmul([2, 16, 17], [2, 16, 16]), "[2, 16, 17] and [2, 16, 16]"),
        (linear([2, 16, 17], [16, 32]), "[2, 16, 17] and [16, 32]"),
        (x_backward([16, 32], [2, 16, 31]), "[2, 16, 31] and [16, 32]"),
        (weight_backward([2, 16, 16], [3, 16, 32]), "[2, 16, 16] and [3, 16, 32]"),
        (weight_backward([2, 16, 16], [2, 17, 32]), "[2, 16, 16] and [2, 17, 32]"),
    ]
}

#[test]
fn shapes_that_do_not_multiply_panic_with_fp8_off_too() {
    for config in [Fp8Config::default(), Fp8Config::off()] {
        let mut messages = config.scope(misfits::<Fp8Backend<Flex>>);
        // Nobody asks it for gradients: it computes its own.
        messages.extend(config.scope(misfits::<Fp8Backend<Autodiff<Flex>>>).drain(..3));
        for (message, shapes) in messages {
            let expected = format!("of the shapes {shapes} do not multiply; these do: [");
            assert!(message.contains(&expected), "{message}");
        }
    }
}
