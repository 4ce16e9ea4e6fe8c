//! Products of any shape, magnitude and layout against f64, within the bound of f32 accumulation.

mod common;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::Fp8Backend;
use burn_fp8::Fp8Format::{E4M3, E5M2};
use common::{Outer, every_matmul, reference, tensor, values};
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
    prop_assert_eq!(product.len(), expected.len());
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

/// A stack of matrices, given as one of several views of memory.
#[derive(Clone, Copy, Debug)]
enum View {
    Contiguous,
    Transposed,
    /// Rows and columns in the middle of a larger tensor.
    Window,
    /// The second half of a larger stack: contiguous, but not from the start of the memory.
    Offset,
}

fn stack<B: Backend>(values: &[f32], [batch, rows, cols]: [usize; 3], view: View) -> Tensor<B, 3> {
    let whole = tensor::<B, 3>(values, [batch, rows, cols]);
    let device = Default::default();
    let around = |shape: [usize; 3]| Tensor::<B, 3>::full(shape, 1e30, &device);
    match view {
        View::Contiguous => whole,
        View::Transposed => {
            // Transposed in memory, and back as a view.
            let swapped = Tensor::<B, 3>::from_data(whole.swap_dims(1, 2).into_data(), &device);
            swapped.swap_dims(1, 2)
        }
        View::Window => around([batch, rows + 3, cols + 5])
            .slice_assign([0..batch, 1..rows + 1, 2..cols + 2], whole)
            .slice([0..batch, 1..rows + 1, 2..cols + 2]),
        View::Offset => {
            Tensor::cat(vec![around([batch, rows, cols]), whole], 0).narrow(0, batch, batch)
        }
    }
}

fn view() -> impl Strategy<Value = View> {
    use View::{Contiguous, Offset, Transposed, Window};
    prop::sample::select(vec![Contiguous, Transposed, Window, Offset])
}

/// The shape batch, M, K, N; whether the right operand is a batch too; operands and output gradient with their views.
#[derive(Clone, Debug)]
struct Step {
    shape: [usize; 4],
    batched: bool,
    x: (Vec<f32>, View),
    w: (Vec<f32>, View),
    dy: Vec<f32>,
}

fn step() -> impl Strategy<Value = Step> {
    let shape = [1usize..4, 1usize..12, 1usize..20, 1usize..12];
    (shape, any::<bool>()).prop_flat_map(|([b, m, k, n], batched)| {
        let stacks = if batched { b } else { 1 };
        let values = |rows, cols| matrix(rows, cols).prop_map(|matrix| matrix.values);
        (values(b * m, k), view(), values(stacks * k, n), view(), values(b * m, n)).prop_map(
            move |(x, x_view, w, w_view, dy)| Step {
                shape: [b, m, k, n],
                batched,
                x: (x, x_view),
                w: (w, w_view),
                dy,
            },
        )
    })
}

/// Sums with the sums of their terms' magnitudes, and the number of terms of each.
struct Expected {
    sums: Vec<f64>,
    magnitudes: Vec<f64>,
    terms: usize,
}

impl Expected {
    fn check(&self, actual: &[f32], what: &str) -> Result<(), TestCaseError> {
        let bound = (self.terms as f64 + 2.0) * f64::from(f32::EPSILON) / 2.0;
        prop_assert_eq!(actual.len(), self.sums.len(), "{}", what);
        for ((actual, sum), magnitude) in actual.iter().zip(&self.sums).zip(&self.magnitudes) {
            let error = (f64::from(*actual) - sum).abs();
            let allowed = bound * magnitude + 2.0 * f64::from(f32::from_bits(1));
            prop_assert!(
                error <= allowed,
                "{what}: {actual:e}, not {sum:e}: {error:e} > {allowed:e}"
            );
        }
        Ok(())
    }
}

/// Output and gradients of `x · w` in f64, from quantized operands.
fn expected(step: &Step) -> [Expected; 3] {
    let [b, m, k, n] = step.shape;
    let (x, w) = (
        reference::quantize_dequantize(&step.x.0, E4M3),
        reference::quantize_dequantize(&step.w.0, E4M3),
    );
    let dy = reference::quantize_dequantize(&step.dy, E5M2);
    let mut y = Expected { sums: vec![], magnitudes: vec![], terms: k };
    let mut dx = Expected { sums: vec![], magnitudes: vec![], terms: n };
    let zeros = vec![0.0; w.len()];
    let terms = if step.batched { m } else { b * m };
    let mut dw = Expected { sums: zeros.clone(), magnitudes: zeros, terms };
    for i in 0..b {
        let at = if step.batched { i * k * n } else { 0 };
        let (x, w) = (&x[i * m * k..][..m * k], &w[at..][..k * n]);
        let dy = &dy[i * m * n..][..m * n];
        let (sums, magnitudes) = reference::matmul(x, w, [m, k, n]);
        y.sums.extend(sums);
        y.magnitudes.extend(magnitudes);
        let (sums, magnitudes) = reference::matmul(dy, &reference::transpose(w, [k, n]), [m, n, k]);
        dx.sums.extend(sums);
        dx.magnitudes.extend(magnitudes);
        let (sums, magnitudes) = reference::matmul(&reference::transpose(x, [m, k]), dy, [k, m, n]);
        dw.sums[at..].iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
        dw.magnitudes[at..].iter_mut().zip(magnitudes).for_each(|(sum, more)| *sum += more);
    }
    [y, dx, dw]
}

fn check_step<B: AutodiffBackend>(step: &Step) -> Result<(), TestCaseError> {
    let [b, m, k, n] = step.shape;
    let stacks = if step.batched { b } else { 1 };
    let x = stack::<B>(&step.x.0, [b, m, k], step.x.1).require_grad();
    let w = stack::<B>(&step.w.0, [stacks, k, n], step.w.1).require_grad();
    let (y, grads) = every_matmul().scope(|| {
        let y = x.clone().matmul(w.clone());
        // The gradient of sum(y · dy) with respect to y is dy, exactly.
        let grads = (y.clone() * tensor(&step.dy, [b, m, n])).sum().backward();
        (y, grads)
    });
    let [expected_y, dx, dw] = expected(step);
    expected_y.check(&values(y), "y")?;
    dx.check(&values(x.grad(&grads).expect("tracked")), "dx")?;
    dw.check(&values(w.grad(&grads).expect("tracked")), "dw")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn products_on_flex_match_f64((shape, lhs, rhs) in case()) {
        check::<Fp8Backend<Flex>>(shape, &lhs, &rhs)?;
    }

    #[test]
    fn steps_on_flex_match_f64(step in step()) {
        check_step::<Outer<Flex>>(&step)?;
    }

    #[cfg(feature = "ndarray")]
    #[test]
    fn steps_on_ndarray_match_f64(step in step()) {
        check_step::<Outer<burn::backend::NdArray>>(&step)?;
    }

    #[cfg(feature = "ndarray")]
    #[test]
    fn products_on_ndarray_match_f64((shape, lhs, rhs) in case()) {
        check::<Fp8Backend<burn::backend::NdArray>>(shape, &lhs, &rhs)?;
    }
}
