//! GELU and dropout as one operation each, against Burn's own, on every kind of backend.

use burn::tensor::TensorData;
use burn::tensor::activation::gelu as burns_gelu;
use burn_fp8::ops::{dropout, gelu};

use crate::common::*;

fn numbers<A: Backend>() -> Tensor<A, 3> {
    let values: Vec<f32> =
        (0..3 * 50 * 40).map(|i| ((i * 7919) % 9973) as f32 / 1000.0 - 5.0).collect();
    // Not contiguous.
    let x = Tensor::from_data(TensorData::new(values, [3, 50, 40]), &Default::default());
    x.swap_dims(1, 2)
}

/// The result, and the gradient of `x` where that of the result is `2 · x`.
fn results<A: AutodiffBackend>(f: impl FnOnce(Tensor<A, 3>) -> Tensor<A, 3>) -> [Vec<f32>; 2] {
    let x = numbers::<A>().require_grad();
    let y = f(x.clone());
    let grads = (y.clone() * x.clone().detach() * 2.0).sum().backward();
    let grad = x.grad(&grads).expect("it was used");
    [y.into_data().to_vec().unwrap(), grad.into_data().to_vec().unwrap()]
}

#[track_caller]
fn assert_gelu<A: AutodiffBackend + Fp8Matmul>() {
    let ([y, grad], [exact, exact_grad]) =
        (results::<A>(gelu), results::<Autodiff<Flex>>(burns_gelu));
    for (x, exact) in y.iter().zip(&exact).chain(grad.iter().zip(&exact_grad)) {
        assert!((x - exact).abs() <= 2e-6 * (1.0 + exact.abs()), "{x} {exact}");
    }
}

/// By the same seed of Burn's generator, with others between.
fn dropped<A: AutodiffBackend + Fp8Matmul>() -> [Vec<f32>; 2] {
    <A as Backend>::seed(&Default::default(), 4);
    results::<A>(|x| dropout(x, 0.25))
}

#[test]
fn gelu_and_its_gradient_are_burns() {
    assert_gelu::<Autodiff<Flex>>();
    assert_gelu::<Fp8Backend<Autodiff<Flex>>>();
    assert_gelu::<Autodiff<Fp8Backend<Flex>>>();
    #[cfg(feature = "ndarray")]
    assert_gelu::<Autodiff<burn::backend::NdArray>>();
}

/// What is kept has the same factor in the result and in the gradient; what is dropped is 0 in both.
#[test]
fn dropout_keeps_and_drops_the_same_forward_and_backward() {
    alone(|| {
        let [y, grad] = dropped::<Autodiff<Flex>>();
        let x: Vec<f32> = numbers::<Flex>().into_data().to_vec().unwrap();
        let factor = (1.0f32 / 0.75).to_bits();
        let mut dropped_elements = 0;
        for ((x, y), grad) in x.iter().zip(&y).zip(&grad).filter(|((x, _), _)| **x != 0.0) {
            match *y {
                0.0 => {
                    dropped_elements += 1;
                    assert_eq!(*grad, 0.0);
                }
                y => {
                    assert_eq!(y, x * f32::from_bits(factor));
                    assert_eq!(*grad, x * 2.0 * f32::from_bits(factor));
                }
            }
        }
        // Six standard deviations of 6,000.
        assert!((1300..1700).contains(&dropped_elements), "{dropped_elements}");
        assert_eq!(dropped::<Autodiff<Flex>>(), [y.clone(), grad.clone()]);
        assert_eq!(dropped::<Fp8Backend<Autodiff<Flex>>>(), [y, grad]);

        let valid = numbers::<Flex>();
        dropout(valid.clone(), 0.25).into_data().assert_eq(&valid.into_data(), true);
    });
}

#[test]
fn half_tensors_keep_their_type() {
    let x = numbers::<Autodiff<Flex>>().cast(DType::BF16).require_grad();
    let y = gelu(x.clone());
    assert_eq!(y.dtype(), DType::BF16);
    let grads = y.sum().backward();
    assert_eq!(x.grad(&grads).unwrap().dtype(), DType::BF16);
}

#[test]
fn a_probability_that_is_none_is_refused() {
    for probability in [-0.1, 1.0, f64::NAN] {
        let message = panic_of(|| dropout(numbers::<Autodiff<Flex>>(), probability));
        assert!(message.contains("at least 0 and less than 1"), "{message}");
    }
}
