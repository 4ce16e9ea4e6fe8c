//! NaN, infinities, zeros, subnormals, outliers.

use crate::common::special::{
    overflow_is_what_was_asked_for, special_values_stay_visible, ties_go_to_even,
};
use crate::common::*;

tests_on_cpu!([
    special_values_stay_visible,
    overflow_is_what_was_asked_for,
    ties_go_to_even,
    extreme_scales_lose_nothing
]);

#[cfg(feature = "ndarray")]
#[test]
fn tensor_operations_and_slices_agree_bit_for_bit() {
    crate::common::special::codes_and_scales_agree_with_flex::<burn::backend::NdArray>();
}

/// `x` `[m, k]` times `w` `[k, n]`.
fn product<B: Fp8Matmul>(x: &[f32], w: &[f32], [m, n]: [usize; 2]) -> Vec<f32> {
    let k = x.len() / m;
    let (x, w) = (tensor::<Fp8Backend<B>, 2>(x, [m, k]), tensor(w, [k, n]));
    every_matmul().scope(|| values(x.matmul(w)))
}

/// Scales whose product is no normal f32 lose nothing that f32 can hold.
fn extreme_scales_lose_nothing<B: Fp8Matmul>() {
    let (m, k) = (2, 1024);
    let filled =
        |left: f32, right: f32| product::<B>(&vec![left; m * k], &vec![right; k * m], [m, m]);
    for (scale, expected) in [(2e-21f32, 4e-42f64 * 1024.0), (1e-22, 1e-44 * 1024.0)] {
        for value in filled(scale, scale) {
            let error = (f64::from(value) - expected).abs();
            assert!(error <= expected * 1e-6 + 2e-45, "{scale:e}: {value:e}, not {expected:e}");
        }
    }
    // Here the sum of code products is 0 or 448², and the true product is 1e72 or 0.
    let huge = product::<B>(&[1e36, 0.0, 0.0, 0.0], &[1e36, 0.0, 0.0, 0.0], [2, 2]);
    assert_eq!(huge, [f32::INFINITY, 0.0, 0.0, 0.0]);
    // Huge scales do not turn zeros into NaN.
    let zeros = product::<B>(&[0.0, 0.0, 1e36, 0.0], &[0.0, 0.0, 0.0, 1e36], [2, 2]);
    assert_eq!(zeros, [0.0; 4]);
    // One huge, one tiny.
    assert_close(&filled(1e37, 1e-30), &[1.024e10; 4], 1e-5, "huge times tiny");
    // 3 is 448 · (3/448) only up to the rounding of the scale.
    assert_close(&product::<B>(&[3.0], &[-5.0], [1, 1]), &[-15.0], 4.0 * f32::EPSILON, "15");
}

/// An infinite output gradient stays infinite or NaN where it reaches, and nowhere else.
#[test]
fn a_non_finite_output_gradient_stays_visible() {
    let dy = [1.0, 1.0, f32::INFINITY, 1.0, 1.0, 1.0];
    let step = || matrix_step::<Outer<Flex>>([&[1.0; 12], &[0.5; 8], &dy], [3, 4, 2]);
    let [_, dx, dw] = every_matmul().scope(step);
    let inf = [f32::INFINITY; 4];
    assert_close(&dx, &[[1.0; 4], inf, [1.0; 4]].concat(), 1e-6, "the second row of dx");
    assert_close(&dw, &[[f32::INFINITY, 3.0]; 4].concat(), 1e-6, "the first column of dw");
}
