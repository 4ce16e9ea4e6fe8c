//! Products of any shape, magnitude and layout against f64, within the bound of f32 accumulation.

mod common;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Backend;
use burn_fp8::Fp8Format::E4M3;
use common::{every_matmul, reference, tensor, values};
use proptest::prelude::*;

/// A matrix, sometimes given as the transpose of another.
#[derive(Clone, Debug)]
struct Matrix {
    values: Vec<f32>,
    transposed: bool,
}

impl Matrix {
    fn tensor<B: Backend>(&self, [rows, cols]: [usize; 2]) -> Tensor<B, 2> {
        match self.transposed {
            true => {
                let swapped: Vec<f32> = (0..cols)
                    .flat_map(|col| (0..rows).map(move |row| (row, col)))
                    .map(|(row, col)| self.values[row * cols + col])
                    .collect();
                tensor::<B, 2>(&swapped, [cols, rows]).transpose()
            }
            false => tensor::<B, 2>(&self.values, [rows, cols]),
        }
    }
}

fn matrix(rows: usize, cols: usize) -> impl Strategy<Value = Matrix> {
    // A magnitude for the whole matrix, and one for each element relative to it.
    let element = (-1f32..1.0, -16i32..0).prop_map(|(x, exponent)| x * 2f32.powi(exponent));
    (-60i32..40, prop::collection::vec(element, rows * cols), any::<bool>()).prop_map(
        |(exponent, values, transposed)| {
            let values = values.into_iter().map(|x| x * 2f32.powi(exponent)).collect();
            Matrix { values, transposed }
        },
    )
}

fn case() -> impl Strategy<Value = ([usize; 3], Matrix, Matrix)> {
    [1usize..24, 1usize..40, 1usize..24]
        .prop_flat_map(|[m, k, n]| (Just([m, k, n]), matrix(m, k), matrix(k, n)))
}

fn check<B: Backend>(shape: [usize; 3], lhs: &Matrix, rhs: &Matrix) -> Result<(), TestCaseError> {
    let [m, k, n] = shape;
    let product = every_matmul().scope(|| lhs.tensor::<B>([m, k]).matmul(rhs.tensor::<B>([k, n])));
    let (a, b) = (
        reference::quantize_dequantize(&lhs.values, E4M3),
        reference::quantize_dequantize(&rhs.values, E4M3),
    );
    let (expected, magnitude) = reference::matmul(&a, &b, shape);
    let product = values(product);
    // Products of codes are exact; k - 1 additions, the product of the scales and their application round.
    let bound = (k as f64 + 2.0) * f64::from(f32::EPSILON) / 2.0;
    for ((actual, expected), magnitude) in product.iter().zip(&expected).zip(&magnitude) {
        let error = (f64::from(*actual) - expected).abs();
        // Below the smallest normal number f32 rounds to multiples of 2^-149.
        let allowed = bound * magnitude + 2.0 * f64::from(f32::from_bits(1));
        prop_assert!(
            error <= allowed,
            "{actual:e} instead of {expected:e}: {error:e} > {allowed:e}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn products_on_flex_match_f64((shape, lhs, rhs) in case()) {
        check::<Fp8Backend<Flex>>(shape, &lhs, &rhs)?;
    }

    #[cfg(feature = "ndarray")]
    #[test]
    fn products_on_ndarray_match_f64((shape, lhs, rhs) in case()) {
        check::<Fp8Backend<burn::backend::NdArray>>(shape, &lhs, &rhs)?;
    }
}
