//! What the other tests compare with does refuse what it should.

use crate::common::golden::assert_tensor;
use crate::common::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn what_is_not_finite_must_be_the_same() {
    assert_close(&[INF, NAN, 1.0], &[INF, NAN, 1.0], 0.1, "x");
    // Beside an infinity everything would be small.
    for [actual, expected] in
        [[2.0, 1.0], [1.0, INF], [INF, 1.0], [-INF, INF], [NAN, 1.0], [1.0, NAN]]
    {
        panics(|| assert_close(&[INF, actual], &[INF, expected], 0.1, "x"), ["x[1]"]);
    }
    panics(|| assert_close(&[1.0], &[1.0, 1.0], 0.1, "x"), ["lengths"]);
    panics(|| assert_relative(&[1000.0, 1.1], &[1000.0, 1.0], 0.01, "x"), ["x[1]"]);
}

/// Results of two terms each: one large, one small; of one that overflows f16; and of what is not finite.
#[test]
fn elements_of_a_product_are_held_to_bounds_of_their_own() {
    let small = Exact::product(&[1000.0, 1000.0, 0.001, -0.001], &[1.0, 1.0], [2, 2, 1]);
    let large = Exact::product(&[65536.0], &[1.0], [1, 1, 1]);
    let many = Exact::product(&[1.0; 4096], &[1.0; 4096], [1, 4096, 1]);
    let infinite = Exact::product(&[f64::INFINITY, 1.0], &[1.0, 1.0], [1, 2, 1]);
    let nan = Exact::product(&[f64::INFINITY, f64::NEG_INFINITY], &[1.0, 1.0], [1, 2, 1]);
    let (in_bf16, in_f16) = (small.clone().rounded(Float::Bf16), large.clone().rounded(Float::F16));
    let (f32, cores) = (Sums::F32, Sums::TensorCores);
    for (exact, sums, actual) in [
        (&small, f32, &[2000.0, 0.0][..]),
        (&small, f32, &[2000.0, 1e-9]),
        // Tensor cores keep less.
        (&small, cores, &[2001.0, 1e-5]),
        // Rounding to a type adds half an ulp, and its infinity.
        (&in_bf16, f32, &[2007.0, 0.0]),
        (&in_f16, f32, &[INF]),
        (&infinite, f32, &[INF]),
        (&nan, f32, &[NAN]),
    ] {
        assert_eq!(exact.mismatch(actual, sums), None);
    }
    for (exact, sums, actual, what) in [
        (&small, f32, &[2000.0, 1e-8][..], "[1]"),
        (&small, f32, &[2000.1, 0.0], "[0]"),
        (&small, f32, &[NAN, 0.0], "[0]"),
        (&small, f32, &[INF, 0.0], "[0]"),
        (&small, cores, &[2001.0, 1e-3], "[1]"),
        // And not much less over all.
        (&many, cores, &[4000.0], "over all"),
        (&in_bf16, f32, &[2009.0, 0.0], "[0]"),
        (&large, f32, &[INF], "[0]"),
        (&in_f16, f32, &[-INF], "[0]"),
        (&infinite, f32, &[1.0], "[0]"),
        (&infinite, f32, &[-INF], "[0]"),
        (&infinite, f32, &[NAN], "[0]"),
        (&nan, f32, &[INF], "[0]"),
    ] {
        says(exact.mismatch(actual, sums).expect(what), [what]);
    }
    panics(|| small.assert(&[2000.0], f32, "y"), ["elements"]);
}

#[test]
fn golden_data_are_of_the_same_shape() {
    let numbers = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let golden = TensorData::new(numbers.to_vec(), [2, 3]);
    assert_tensor(tensor::<Flex, 2>(&numbers, [2, 3]), &golden, "x");
    assert_tensor(tensor::<Flex, 3>(&numbers, [1, 2, 3]), &golden, "x");
    panics(|| assert_tensor(tensor::<Flex, 2>(&numbers, [3, 2]), &golden, "x"), ["shape"]);
    panics(|| assert_tensor(tensor::<Flex, 3>(&numbers, [2, 1, 3]), &golden, "x"), ["leading"]);
    panics(|| assert_tensor(tensor::<Flex, 2>(&[0.0; 6], [2, 3]), &golden, "x"), ["x[0]"]);
}
