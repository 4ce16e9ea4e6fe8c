//! What the other tests compare with does refuse what it should.

use crate::common::golden::assert_same;
use crate::common::*;

const INF: f32 = f32::INFINITY;

fn refuses(assertion: impl FnOnce(), element: &str) {
    panics(assertion, [element]);
}

#[test]
fn what_is_not_finite_must_be_the_same() {
    assert_close(&[INF, f32::NAN, 1.0], &[INF, f32::NAN, 1.0], 0.1, "x");
    // Beside an infinity everything would be small.
    refuses(|| assert_close(&[INF, 2.0], &[INF, 1.0], 0.1, "x"), "x[1]");
    for [actual, expected] in
        [[1.0, INF], [INF, 1.0], [-INF, INF], [f32::NAN, 1.0], [1.0, f32::NAN]]
    {
        refuses(|| assert_close(&[actual, 1.0], &[expected, 1.0], 0.1, "x"), "x[0]");
    }
    refuses(|| assert_close(&[1.0], &[1.0, 1.0], 0.1, "x"), "lengths");
    refuses(|| assert_relative(&[1000.0, 1.1], &[1000.0, 1.0], 0.01, "x"), "x[1]");
}

/// Two results of two terms each: one large, one small.
fn product() -> Exact {
    Exact::product(&[1000.0, 1000.0, 0.001, -0.001], &[1.0, 1.0], [2, 2, 1])
}

#[test]
fn small_elements_are_held_to_bounds_of_their_own() {
    product().assert(&[2000.0, 0.0], Sums::F32, "y");
    product().assert(&[2000.0, 1e-9], Sums::F32, "y");
    refuses(|| product().assert(&[2000.0, 1e-8], Sums::F32, "y"), "y[1]");
    refuses(|| product().assert(&[2000.1, 0.0], Sums::F32, "y"), "y[0]");
    refuses(|| product().assert(&[f32::NAN, 0.0], Sums::F32, "y"), "y[0]");
    refuses(|| product().assert(&[INF, 0.0], Sums::F32, "y"), "y[0]");
    refuses(|| product().assert(&[2000.0], Sums::F32, "y"), "elements");
    // Tensor cores keep less, and not much less over all.
    product().assert(&[2001.0, 1e-5], Sums::TensorCores, "y");
    refuses(|| product().assert(&[2001.0, 1e-3], Sums::TensorCores, "y"), "y[1]");
    let many = Exact::product(&[1.0; 4096], &[1.0; 4096], [1, 4096, 1]);
    refuses(|| many.assert(&[4000.0], Sums::TensorCores, "y"), "over all");
}

#[test]
fn rounding_to_a_type_adds_half_an_ulp_and_its_infinity() {
    let rounded = || product().rounded(FloatDType::BF16);
    rounded().assert(&[2000.0 + 7.0, 0.0], Sums::F32, "y");
    refuses(|| rounded().assert(&[2000.0 + 9.0, 0.0], Sums::F32, "y"), "y[0]");
    let large = || Exact::product(&[65536.0], &[1.0], [1, 1, 1]);
    large().rounded(FloatDType::F16).assert(&[INF], Sums::F32, "y");
    refuses(|| large().assert(&[INF], Sums::F32, "y"), "y[0]");
    refuses(|| large().rounded(FloatDType::F16).assert(&[-INF], Sums::F32, "y"), "y[0]");
}

#[test]
fn what_is_not_finite_in_a_product_must_be_the_same() {
    let infinite = Exact::product(&[f64::INFINITY, 1.0], &[1.0, 1.0], [1, 2, 1]);
    infinite.assert(&[INF], Sums::F32, "y");
    for wrong in [1.0, -INF, f32::NAN] {
        refuses(|| infinite.assert(&[wrong], Sums::F32, "y"), "y[0]");
    }
    let nan = Exact::product(&[f64::INFINITY, f64::NEG_INFINITY], &[1.0, 1.0], [1, 2, 1]);
    nan.assert(&[f32::NAN], Sums::F32, "y");
    refuses(|| nan.assert(&[INF], Sums::F32, "y"), "y[0]");
}

#[test]
fn golden_data_are_of_the_same_shape() {
    let golden = || TensorData::new(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
    let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_same(tensor::<Flex, 2>(&numbers, [2, 3]), &golden(), "x");
    assert_same(tensor::<Flex, 3>(&numbers, [1, 2, 3]), &golden(), "x");
    refuses(|| assert_same(tensor::<Flex, 2>(&numbers, [3, 2]), &golden(), "x"), "shape");
    refuses(|| assert_same(tensor::<Flex, 3>(&numbers, [2, 1, 3]), &golden(), "x"), "leading");
    refuses(|| assert_same(tensor::<Flex, 2>(&[0.0; 6], [2, 3]), &golden(), "x"), "x[0]");
}
