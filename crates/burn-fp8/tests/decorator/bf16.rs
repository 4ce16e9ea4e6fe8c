//! Products in bf16: forward and both gradients, as the recipe says.

use burn::tensor::module;

use crate::common::*;

/// Batch, rows, inputs, outputs.
const SHAPE: [usize; 4] = [3, 20, 70, 33];

fn round(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| burn::tensor::bf16::from_f32(*x).to_f64()).collect()
}

/// `[m, k]` times `[k, n]` in f64.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let sum = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
    (0..m * n).map(sum).collect()
}

fn transpose(x: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|at| x[at % rows * columns + at / rows]).collect()
}

/// Output, gradient of the input, and of the weight, by a layer.
fn step<B: AutodiffBackend>() -> [Vec<f32>; 3] {
    let [batch, rows, inputs, outputs] = SHAPE;
    let random = |seed, count| Random(seed).spread(count);
    let x = tensor::<B, 3>(&random(1, batch * rows * inputs), [batch, rows, inputs]);
    let weight = tensor::<B, 2>(&random(2, inputs * outputs), [inputs, outputs]);
    let (x, weight) = (x.require_grad(), weight.require_grad());
    let grad = tensor::<B, 3>(&random(4, batch * rows * outputs), [batch, rows, outputs]);
    let y = module::linear(x.clone(), weight.clone(), None);
    let grads = (y.clone() * grad).sum().backward();
    let of_x = values(x.grad(&grads).expect("tracked"));
    [values(y), of_x, values(weight.grad(&grads).expect("tracked"))]
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    let largest = expected.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let near = (f64::from(*found) - expected).abs() <= 2e-6 * largest;
        assert!(near, "{what}: {found}, not {expected}");
    }
}

#[test]
fn operands_are_rounded_to_bf16_forward_and_backward() {
    let [batch, rows, k, n] = SHAPE;
    let m = batch * rows;
    let random = |seed, count| round(&Random(seed).spread(count));
    let (x, weight, grad) = (random(1, m * k), random(2, k * n), random(4, m * n));
    let expected = [
        product(&x, &weight, [m, k, n]),
        product(&grad, &transpose(&weight, [k, n]), [m, n, k]),
        product(&transpose(&x, [m, k]), &grad, [k, m, n]),
    ];
    let config = Fp8Config::default().with_recipe(Recipe::bf16());
    let emulated = config.with_execution(Execution::FakeQuantized);
    for config in [config, emulated] {
        let ((outer, inner), report) =
            config.scope(|| trace(|| (step::<Outer<Flex>>(), step::<Inner<Flex>>())));
        for results in [outer, inner] {
            for (index, (found, expected)) in results.iter().zip(&expected).enumerate() {
                assert_near(found, expected, &format!("{index}, {:?}", config.execution));
            }
        }
        assert_eq!(report.fp8().count(), 0);
        let reasons: Vec<_> =
            report.products.iter().map(|product| product.ran.to_string()).collect();
        assert_eq!(reasons.len(), 6);
        let ran = match implementation::<Flex>() {
            Implementation::MatrixUnit(unit) if config.execution == Execution::Auto => {
                format!("in bf16 on {unit}")
            }
            _ => "rounded to bf16".to_owned(),
        };
        assert!(reasons.iter().all(|reason| reason.contains(&ran)), "{reasons:?}, not {ran}");
    }
}

/// A decorator in a decorator takes no product twice.
#[test]
fn products_are_told_once() {
    type Nested = Fp8Backend<Autodiff<Fp8Backend<Flex>>>;
    let recipe = Recipe::bf16().with_precision(GemmRole::Output, burn_fp8::Precision::Fp8);
    for (recipe, in_fp8) in [(Recipe::bf16(), 0), (recipe, 1)] {
        let config = Fp8Config::default().with_recipe(recipe);
        let (nested, report) = config.scope(|| trace(step::<Nested>));
        assert_eq!((report.products.len(), report.fp8().count()), (3, in_fp8), "{report}");
        assert_eq!(nested, config.scope(step::<Outer<Flex>>));
    }
}

/// Scales of blocks are no matter of products in bf16, nor is what FP8 needs to run natively.
#[test]
fn only_fp8_is_asked_for_natively() {
    let expected = Fp8Config::default().with_recipe(Recipe::bf16()).scope(step::<Outer<Flex>>);
    let in_blocks = Recipe { products: Recipe::bf16().products, ..Recipe::blockwise() };
    let in_blocks = in_blocks.with_power_of_two(false);
    for recipe in [Recipe::bf16(), in_blocks] {
        let native = Fp8Config::default().with_execution(Execution::Native).with_recipe(recipe);
        assert_eq!(native.scope(step::<Outer<Flex>>), expected);
    }
}

/// Gradients alone in bf16, beside a forward product in FP8.
#[test]
fn each_product_has_a_precision_of_its_own() {
    let recipe = Recipe::bf16().with_precision(GemmRole::Output, burn_fp8::Precision::Fp8);
    let config = Fp8Config::default().with_recipe(recipe);
    let (mixed, report) = config.scope(|| trace(step::<Outer<Flex>>));
    assert_eq!(report.fp8().count(), 1);
    let in_bf16 = Fp8Config::default().with_recipe(Recipe::bf16()).scope(step::<Outer<Flex>>);
    let in_fp8 = Fp8Config::default().scope(step::<Outer<Flex>>);
    assert_eq!(bits(&mixed[0]), bits(&in_fp8[0]));
    assert_eq!(bits(&mixed[1]), bits(&in_bf16[1]));
    assert_eq!(bits(&mixed[2]), bits(&in_bf16[2]));
}

/// Batches of both operands, which no unit is given.
#[test]
fn batches_are_rounded_as_well() {
    let shape = [2, 3, 17, 20];
    let [a, b] = [1, 2].map(|seed| Random(seed).spread(2 * 3 * 17 * 20));
    let config = every_matmul().with_recipe(Recipe::bf16());
    let run = |a: &[f32], b: &[f32]| {
        let a = tensor::<Fp8Backend<Flex>, 4>(a, shape);
        values(a.matmul(tensor(b, shape).swap_dims(2, 3)))
    };
    let (found, report) = config.scope(|| trace(|| run(&a, &b)));
    assert!(report.products[0].ran.to_string().contains("rounded to bf16"), "{report}");
    let rounded = |x: &[f32]| round(x).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let expected = Fp8Config::off().scope(|| run(&rounded(&a), &rounded(&b)));
    assert_eq!(found, expected);
}

#[cfg(feature = "ndarray")]
#[test]
fn a_backend_without_bf16_is_refused() {
    use burn::backend::NdArray;
    let config = Fp8Config::default().with_recipe(Recipe::bf16());
    let error = config.check::<NdArray>(&Default::default()).expect_err("it has none").to_string();
    assert!(error.contains("no bf16 for products; choose FP8 or high precision"), "{error}");
    let run = || config.scope(step::<Outer<NdArray>>);
    let panic = std::panic::catch_unwind(run).expect_err("it has none");
    let message = panic.downcast::<String>().expect("words");
    assert!(message.contains("no bf16 for products"), "{message}");
}
