//! Shapes that do not multiply, whatever the configuration.

use burn::tensor::ops::FloatTensor;

use crate::common::*;

fn of<B: Backend, const D: usize>(shape: [usize; D]) -> FloatTensor<B> {
    ones::<B, D>(shape).into_primitive().tensor()
}

/// What each product says of operands whose shapes do not fit. Those of gradients come last.
fn misfits<B: Backend>() -> Vec<String> {
    fn panics<B: Backend, const D: usize, const E: usize>(
        product: fn(FloatTensor<B>, FloatTensor<B>) -> FloatTensor<B>,
        shapes: ([usize; D], [usize; E]),
    ) -> String {
        let message = panic_of(|| product(of::<B, D>(shapes.0), of::<B, E>(shapes.1)));
        let named = format!("of the shapes {:?} and {:?} do not multiply", shapes.0, shapes.1);
        message.replace(&named, "both shapes are named")
    }
    let linear = |x, weight| B::linear(x, weight, None);
    let of_x = |g, weight| B::linear_x_backward(weight, g);
    vec![
        panics::<B, _, _>(B::float_matmul, ([2, 16, 16], [3, 16, 16])),
        panics::<B, _, _>(B::float_matmul, ([2, 16, 17], [2, 16, 16])),
        panics::<B, _, _>(linear, ([2, 16, 17], [16, 32])),
        panics::<B, _, _>(of_x, ([2, 16, 31], [16, 32])),
        panics::<B, _, _>(B::linear_weight_backward, ([2, 16, 16], [3, 16, 32])),
        panics::<B, _, _>(B::linear_weight_backward, ([2, 16, 16], [2, 17, 32])),
    ]
}

#[test]
fn shapes_that_do_not_multiply_panic_with_fp8_off_too() {
    let linear_only = Fp8Config::default().with_filter(Filter::linear_only());
    for config in [Fp8Config::default(), every_matmul(), linear_only, Fp8Config::off()] {
        let mut messages = config.scope(misfits::<Fp8Backend<Flex>>);
        // Nobody asks these for gradients: they compute their own.
        messages.extend(config.scope(misfits::<Outer<Flex>>).drain(..3));
        messages.extend(config.scope(misfits::<Inner<Flex>>).drain(..3));
        for message in messages {
            says(message, ["both shapes are named; these do: ["]);
        }
    }
}

#[test]
fn mismatched_matrices_give_the_error_of_the_backend() {
    fn message<B: Backend>() -> String {
        panic_of(|| ones::<B, 2>([16, 17]).matmul(ones([18, 16])))
    }
    assert_eq!(message::<Fp8Backend<Flex>>(), message::<Flex>());
    assert_eq!(message::<Outer<Flex>>(), message::<Autodiff<Flex>>());
}
