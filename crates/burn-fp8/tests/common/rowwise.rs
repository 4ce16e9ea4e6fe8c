//! Scales per row against their definition, in f64.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_fp8::{Formats, Fp8Config, Fp8Format, Fp8Matmul, GemmRole, Granularity, Recipe, trace};

use super::exact::{Exact, Sums};
use super::{Inner, Outer, Random, bits, every_matmul, implementation, reference, tensor, values};

type Matrix = Vec<f64>;

fn rowwise(formats: Formats) -> Fp8Config {
    every_matmul().with_recipe(Recipe::rowwise().with_formats(formats))
}

fn transpose(x: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| x[row * columns + column])).collect()
}

/// Each row quantized with a scale of its own, and dequantized.
fn by_rows(x: &[f32], [_, columns]: [usize; 2], format: Fp8Format) -> Matrix {
    x.chunks(columns).flat_map(|row| reference::quantize_dequantize(row, format)).collect()
}

fn by_columns(x: &[f32], [rows, columns]: [usize; 2], format: Fp8Format) -> Matrix {
    let rows_of_transpose = by_rows(&transpose(x, [rows, columns]), [columns, rows], format);
    reference::transpose(&rows_of_transpose, [columns, rows])
}

/// Rows of very different sizes, one of them zero.
fn rows_of_all_sizes(seed: u64, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut values = Random(seed).spread(rows * columns);
    for (row, values) in values.chunks_mut(columns).enumerate() {
        let size = match row % 7 {
            3 => 0.0,
            row => 2f32.powi(row as i32 * 7 - 21),
        };
        values.iter_mut().for_each(|value| *value *= size);
    }
    values
}

/// Output and gradients of products of odd shapes.
pub fn products_follow_the_definition<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    const SHAPE: [usize; 3] = [23, 35, 19];
    let [m, k, n] = SHAPE;
    let x = rows_of_all_sizes(1, [m, k]);
    let w = transpose(&rows_of_all_sizes(2, [n, k]), [n, k]);
    let g = rows_of_all_sizes(3, [m, n]);
    for formats in [Formats::HYBRID, Formats::E4M3] {
        let (grads, report) = rowwise(formats).scope(|| {
            let lhs = tensor::<Outer<B>, 2>(&x, [m, k]).require_grad();
            let rhs = tensor::<Outer<B>, 2>(&w, [k, n]).require_grad();
            trace(|| {
                let output = lhs.clone().matmul(rhs.clone());
                let grads = (output.clone() * tensor(&g, [m, n])).sum().backward();
                let grad = |of: &Tensor<Outer<B>, 2>| values(of.grad(&grads).expect("tracked"));
                [values(output), grad(&lhs), grad(&rhs)]
            })
        });
        let [output, grad_x, grad_w] = grads;
        let (input, gradient) = (formats.input, formats.output_grad);
        let exact =
            Exact::product(&by_rows(&x, [m, k], input), &by_columns(&w, [k, n], input), SHAPE);
        exact.assert(&output, Sums::F32, "output");
        let w_t = reference::transpose(&by_rows(&w, [k, n], input), [k, n]);
        let exact = Exact::product(&by_rows(&g, [m, n], gradient), &w_t, [m, n, k]);
        exact.assert(&grad_x, Sums::F32, "grad_input");
        let x_t = reference::transpose(&by_columns(&x, [m, k], input), [m, k]);
        let exact = Exact::product(&x_t, &by_columns(&g, [m, n], gradient), [k, m, n]);
        exact.assert(&grad_w, Sums::F32, "grad_weight");

        assert_eq!(report.products.len(), 3);
        for product in &report.products {
            assert_eq!(product.ran, implementation::<B>());
            for operand in [&product.lhs, &product.rhs] {
                let operand = operand.expect("in FP8");
                assert_eq!(operand.granularity, Granularity::PerRow);
                assert_eq!(operand.saturated, 0, "each row has the scale of its own amax");
            }
        }
        // The largest of the scales is that of the whole tensor.
        let output = report.products.iter().find(|product| product.role == GemmRole::Output);
        let lhs = output.expect("one of three").lhs.expect("in FP8");
        assert_eq!(lhs.scale, reference::scale(&x, input));
    }
}

/// Leading dimensions that join, batches, broadcast operands, transposed views, and both orders of decorators.
pub fn shapes_and_orders_agree<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [6, 20, 10];
    let x = rows_of_all_sizes(4, [2 * m, k]);
    let w = rows_of_all_sizes(5, [k, n]);
    let config = rowwise(Formats::HYBRID);
    config.scope(|| {
        let matrix = tensor::<Outer<B>, 2>(&x, [2 * m, k]);
        let weight = tensor::<Outer<B>, 2>(&w, [k, n]);
        let expected = bits(&values(matrix.clone().matmul(weight.clone())));
        let joined = matrix.clone().reshape([2, m, k]).matmul(weight.clone().reshape([1, k, n]));
        assert_eq!(bits(&values(joined)), expected);
        let transposed = tensor::<Outer<B>, 2>(&transpose(&w, [k, n]), [n, k]).transpose();
        let format = Fp8Format::E4M3;
        let exact = Exact::product(
            &by_rows(&x, [2 * m, k], format),
            &by_columns(&w, [k, n], format),
            [2 * m, k, n],
        );
        exact.assert(&values(matrix.clone().matmul(transposed)), Sums::F32, "transposed");

        // A batch is its products side by side.
        let weights =
            tensor::<Outer<B>, 3>(&[w.clone(), rows_of_all_sizes(6, [k, n])].concat(), [2, k, n]);
        let batch = values(matrix.clone().reshape([2, m, k]).matmul(weights.clone()));
        let each = (0..2).flat_map(|index| {
            let lhs = matrix.clone().slice([index * m..(index + 1) * m, 0..k]);
            let rhs = weights.clone().slice([index..index + 1, 0..k, 0..n]).reshape([k, n]);
            values(lhs.matmul(rhs))
        });
        assert_eq!(bits(&batch), bits(&each.collect::<Vec<_>>()));

        // Gradients come back in the shapes of the operands.
        let g = Random(7).spread(2 * m * n);
        let gradients = |x: Tensor<Outer<B>, 3>, w: Tensor<Outer<B>, 3>| {
            let (x, w) = (x.require_grad(), w.require_grad());
            let [batch, rows, _] = x.dims();
            let g = tensor::<Outer<B>, 3>(&g, [batch, rows, n]);
            let grads = (x.clone().matmul(w.clone()) * g).sum().backward();
            [x.grad(&grads), w.grad(&grads)].map(|grad| grad.expect("tracked"))
        };
        let plain = gradients(matrix.clone().unsqueeze(), weight.clone().unsqueeze());
        let joined = gradients(matrix.clone().reshape([2, m, k]), weight.clone().unsqueeze());
        assert_eq!(joined[0].dims(), [2, m, k]);
        assert_eq!(joined[1].dims(), [1, k, n]);
        for (joined, plain) in joined.into_iter().zip(plain) {
            assert_eq!(bits(&values(joined)), bits(&values(plain)));
        }
    });

    let g = Random(8).spread(2 * m * n);
    let outer = config.scope(|| linear_gradients::<Outer<B>>(&x, &w, &g, [2 * m, k, n]));
    let inner = config.scope(|| linear_gradients::<Inner<B>>(&x, &w, &g, [2 * m, k, n]));
    assert!(outer.iter().flatten().any(|value| *value != 0.0));
    assert_eq!(outer.map(|values| bits(&values)), inner.map(|values| bits(&values)));
}

/// Output and gradients of a linear layer.
fn linear_gradients<B: burn::tensor::backend::AutodiffBackend>(
    x: &[f32],
    w: &[f32],
    g: &[f32],
    [m, k, n]: [usize; 3],
) -> [Vec<f32>; 3] {
    let x = tensor::<B, 2>(x, [m, k]).require_grad();
    let w = tensor::<B, 2>(w, [k, n]).require_grad();
    let output = burn::tensor::module::linear(x.clone(), w.clone(), None);
    let grads = (output.clone() * tensor(g, [m, n])).sum().backward();
    let grad = |of: &Tensor<B, 2>| values(of.grad(&grads).expect("tracked"));
    [values(output), grad(&x), grad(&w)]
}

/// What is not finite shows in its own row and column, and costs the others nothing.
pub fn non_finite_values_stay_in_their_rows<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [5, 16, 4];
    let (clean, w) = (Random(9).spread(m * k), Random(10).spread(k * n));
    let product = |x: &[f32]| {
        let x = tensor::<Outer<B>, 2>(x, [m, k]);
        rowwise(Formats::HYBRID).scope(|| values(x.matmul(tensor(&w, [k, n]))))
    };
    let expected = product(&clean);
    let mut poisoned = clean;
    poisoned[k] = f32::NAN;
    poisoned[3 * k + 2] = f32::NEG_INFINITY;
    for (index, (actual, expected)) in product(&poisoned).iter().zip(expected).enumerate() {
        match index / n {
            1 | 3 => assert!(actual.is_nan(), "[{index}]: {actual}"),
            _ => assert_eq!(actual.to_bits(), expected.to_bits(), "[{index}]"),
        }
    }
}

/// Where a few values are much larger than all the others, the others keep their precision in all rows but those.
pub fn outliers_cost_less_than_with_a_scale_per_tensor<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [64, 64, 32];
    let mut random = Random(11);
    let mut x: Vec<f32> = (0..m * k).map(|_| random.unit()).collect();
    let mut w: Vec<f32> = (0..k * n).map(|_| random.unit()).collect();
    // As in trained models: what is large is met by small weights.
    let outlier = 2f32.powi(17);
    for row in [5, 40] {
        x[row * k + 7] = outlier;
    }
    w[7 * n..8 * n].iter_mut().for_each(|w| *w /= outlier);

    let exact = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<_>>();
    let (reference, _) = reference::matmul(&exact(&x), &exact(&w), [m, k, n]);
    let sqnr = |recipe: Recipe| {
        let config = every_matmul().with_recipe(recipe);
        let x = tensor::<Outer<B>, 2>(&x, [m, k]);
        let output = config.scope(|| values(x.matmul(tensor(&w, [k, n]))));
        let noise = output.iter().zip(&reference).map(|(y, r)| (f64::from(*y) - r).powi(2));
        let signal: f64 = reference.iter().map(|r| r * r).sum();
        10.0 * (signal / noise.sum::<f64>()).log10()
    };
    let (per_tensor, per_row) = (sqnr(Recipe::current()), sqnr(Recipe::rowwise()));
    assert!(per_row > per_tensor + 6.0, "{per_row:.1} dB against {per_tensor:.1} dB");
    let e4m3 = |recipe: Recipe| recipe.with_formats(Formats::E4M3);
    assert_eq!(sqnr(e4m3(Recipe::rowwise())), per_row, "no gradients: the same products");
}
