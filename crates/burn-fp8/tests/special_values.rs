//! NaN, infinities, zeros, subnormals, outliers, empty and mismatched tensors.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::{Fp8Backend, trace};
#[cfg(feature = "ndarray")]
use common::special::check_agreement;
use common::special::{check_special, check_ties};
use common::{every_matmul, tensor, values};

#[test]
fn special_values_on_flex() {
    check_special::<Flex>();
}

#[cfg(feature = "ndarray")]
#[test]
fn special_values_on_ndarray() {
    check_special::<burn::backend::NdArray>();
}

#[test]
fn ties_go_to_even_everywhere() {
    check_ties::<Flex>();
    #[cfg(feature = "ndarray")]
    check_ties::<burn::backend::NdArray>();
}

#[cfg(feature = "ndarray")]
#[test]
fn tensor_operations_and_slices_agree_bit_for_bit() {
    check_agreement::<burn::backend::NdArray>();
}

#[test]
fn a_non_finite_element_shows_in_its_row_only() {
    type B = Fp8Backend<Flex>;
    let mut x = [1.0; 12];
    x[5] = f32::INFINITY;
    let product =
        every_matmul().scope(|| tensor::<B, 2>(&x, [3, 4]).matmul(tensor(&[0.5; 8], [4, 2])));
    let product = values(product);
    assert!(product[2].is_nan() && product[3].is_nan());
    common::assert_close(
        &[product[0], product[1], product[4], product[5]],
        &[2.0; 4],
        1e-6,
        "rest",
    );
}

/// Scales whose product is no normal f32 lose nothing that f32 can hold.
fn check_extreme_scales<B: Backend>() {
    let (m, k) = (2, 1024);
    for (scale, expected) in [(2e-21f32, 4e-42f64 * 1024.0), (1e-22, 1e-44 * 1024.0)] {
        let product = every_matmul().scope(|| {
            tensor::<B, 2>(&vec![scale; m * k], [m, k]).matmul(tensor(&vec![scale; m * k], [k, m]))
        });
        for value in values(product) {
            let error = (f64::from(value) - expected).abs();
            assert!(error <= expected * 1e-6 + 2e-45, "{scale:e}: {value:e}, not {expected:e}");
        }
    }
    // Here the sum of code products is 0 or 448², and the true product is 1e72 or 0.
    let product = every_matmul().scope(|| {
        tensor::<B, 2>(&[1e36, 0.0, 0.0, 0.0], [2, 2])
            .matmul(tensor(&[1e36, 0.0, 0.0, 0.0], [2, 2]))
    });
    assert_eq!(values(product), [f32::INFINITY, 0.0, 0.0, 0.0]);
    // One huge, one tiny.
    let product = every_matmul().scope(|| {
        tensor::<B, 2>(&vec![1e37; m * k], [m, k]).matmul(tensor(&vec![1e-30; m * k], [k, m]))
    });
    common::assert_close(&values(product), &[1.024e10; 4], 1e-5, "huge times tiny");
}

#[test]
fn extreme_scales_lose_nothing() {
    check_extreme_scales::<Fp8Backend<Flex>>();
    #[cfg(feature = "ndarray")]
    check_extreme_scales::<Fp8Backend<burn::backend::NdArray>>();
}

/// An infinite output gradient stays infinite or NaN where it reaches, and nowhere else.
#[test]
fn a_non_finite_output_gradient_stays_visible() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let x = tensor::<B, 2>(&[1.0; 12], [3, 4]).require_grad();
    let w = tensor::<B, 2>(&[0.5; 8], [4, 2]).require_grad();
    let dy = tensor::<B, 2>(&[1.0, 1.0, f32::INFINITY, 1.0, 1.0, 1.0], [3, 2]);
    let grads = every_matmul().scope(|| (x.clone().matmul(w.clone()) * dy).sum().backward());
    let dx = values(x.grad(&grads).unwrap());
    assert!(dx[4..8].iter().all(|dx| *dx == f32::INFINITY), "{dx:?}");
    common::assert_close(&dx[..4], &[1.0; 4], 1e-6, "first row of dx");
    common::assert_close(&dx[8..], &[1.0; 4], 1e-6, "last row of dx");
    let dw = values(w.grad(&grads).unwrap());
    for row in dw.chunks(2) {
        assert_eq!(row[0], f32::INFINITY);
        common::assert_close(&row[1..], &[3.0], 1e-6, "second column of dw");
    }
}

#[test]
fn huge_scales_do_not_turn_zeros_into_nan() {
    type B = Fp8Backend<Flex>;
    let product = every_matmul().scope(|| {
        tensor::<B, 2>(&[0.0, 0.0, 1e36, 0.0], [2, 2])
            .matmul(tensor(&[0.0, 0.0, 0.0, 1e36], [2, 2]))
    });
    assert_eq!(values(product), [0.0; 4]);
}

fn check_empty<B: Backend>() {
    let device = Default::default();
    let (product, report) = every_matmul().scope(|| {
        trace(|| {
            Tensor::<B, 2>::ones([0, 4], &device).matmul(Tensor::<B, 2>::ones([4, 3], &device))
        })
    });
    assert_eq!(product.dims(), [0, 3]);
    assert_eq!(report.fp8().count(), 0);
}

#[test]
fn empty_products_run_on_the_backend() {
    check_empty::<Fp8Backend<Flex>>();
    check_empty::<Fp8Backend<Autodiff<Flex>>>();
}

#[test]
fn one_element_is_exact_up_to_the_rounding_of_the_scales() {
    type B = Fp8Backend<Flex>;
    let product =
        every_matmul().scope(|| tensor::<B, 2>(&[3.0], [1, 1]).matmul(tensor(&[-5.0], [1, 1])));
    // 3 is 448 · (3/448) only up to the rounding of the scale.
    assert!((values(product)[0] + 15.0).abs() <= 15.0 * 4.0 * f32::EPSILON);
}

#[test]
fn mismatched_shapes_give_the_error_of_the_backend() {
    fn message<B: Backend>() -> String {
        let device = Default::default();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            Tensor::<B, 2>::ones([16, 17], &device).matmul(Tensor::<B, 2>::ones([18, 16], &device))
        }));
        *panicked.unwrap_err().downcast::<String>().expect("Burn panics with a message")
    }
    assert_eq!(message::<Fp8Backend<Flex>>(), message::<Flex>());
    assert_eq!(message::<Fp8Backend<Autodiff<Flex>>>(), message::<Autodiff<Flex>>());
}
