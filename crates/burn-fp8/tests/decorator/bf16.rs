//! Products in bf16: forward and both gradients, as the recipe says.

use crate::common::*;

/// Batch and rows; all rows, inputs, outputs.
const LEAD: [usize; 3] = [3, 20, 0];
const SHAPE: [usize; 3] = [60, 70, 33];

fn round(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| burn::tensor::bf16::from_f32(*x).to_f64()).collect()
}

fn in_bf16() -> Fp8Config {
    Fp8Config::default().with_recipe(Recipe::bf16())
}

/// Output and gradients of a layer under a configuration, and the report.
fn step<B: AutodiffBackend>(config: Fp8Config) -> ([Vec<u32>; 4], Report) {
    let data = linear_data(1, SHAPE);
    let (results, report) = config.scope(|| trace(|| linear_step::<B, 3>(&data, LEAD)));
    (results.map(|values| bits(&values)), report)
}

#[test]
fn operands_are_rounded_to_bf16_forward_and_backward() {
    let [x, w, b, g] = linear_data(1, SHAPE);
    let [y, dx, dw] = Exact::step([&round(&x), &round(&w), &round(&g)], SHAPE);
    let exact = [y.plus_bias(&b), dx, dw];
    for execution in [Execution::Auto, Execution::FakeQuantized] {
        let ran = match implementation::<Flex>() {
            Implementation::MatrixUnit(unit) if execution == Execution::Auto => {
                format!("in bf16 on {unit}")
            }
            _ => "rounded to bf16".to_owned(),
        };
        let config = in_bf16().with_execution(execution);
        for (results, report) in [step::<Outer<Flex>>(config), step::<Inner<Flex>>(config)] {
            for (index, (found, exact)) in results.into_iter().zip(&exact).enumerate() {
                let found: Vec<_> = found.into_iter().map(f32::from_bits).collect();
                exact.assert(&found, Sums::F32, &format!("{index}, {execution:?}"));
            }
            assert_eq!((report.products.len(), report.fp8().count()), (3, 0));
            report.products.iter().for_each(|product| says(&product.ran, [&ran]));
        }
    }
}

/// Gradients alone in bf16, beside a forward product in FP8; also in a decorator within a decorator, which takes no product twice.
#[test]
fn each_product_has_a_precision_of_its_own_and_is_told_once() {
    type Nested = Fp8Backend<Autodiff<Fp8Backend<Flex>>>;
    let recipe = Recipe::bf16().with_precision(GemmRole::Output, Precision::Fp8);
    let config = Fp8Config::default().with_recipe(recipe);
    let (mixed, report) = step::<Outer<Flex>>(config);
    assert_eq!((report.products.len(), report.fp8().count()), (3, 1), "{report}");
    let [of_bf16, of_fp8] = [in_bf16(), Fp8Config::default()].map(|c| step::<Outer<Flex>>(c).0);
    assert_eq!((&mixed[0], &mixed[1..3]), (&of_fp8[0], &of_bf16[1..3]));
    for (config, expected, in_fp8) in [(config, mixed, 1), (in_bf16(), of_bf16, 0)] {
        let (nested, report) = step::<Nested>(config);
        assert_eq!((report.products.len(), report.fp8().count()), (3, in_fp8), "{report}");
        assert_eq!(nested, expected);
    }
}

/// Scales of blocks are no matter of products in bf16, nor is what FP8 needs to run natively.
#[test]
fn only_fp8_is_asked_for_natively() {
    let in_blocks = Recipe { products: Recipe::bf16().products, ..Recipe::blockwise() };
    for recipe in [Recipe::bf16(), in_blocks.with_power_of_two(false)] {
        let native = in_bf16().with_recipe(recipe).with_execution(Execution::Native);
        assert_eq!(step::<Outer<Flex>>(native).0, step::<Outer<Flex>>(in_bf16()).0);
    }
}

/// Batches of both operands, which no unit is given.
#[test]
fn batches_are_rounded_as_well() {
    let shape = [2, 3, 17, 20];
    let [a, b] = [1, 2].map(|seed| Random(seed).spread(shape.iter().product()));
    let run = |a: &[f32], b: &[f32]| {
        let a = tensor::<Fp8Backend<Flex>, 4>(a, shape);
        values(a.matmul(tensor(b, shape).swap_dims(2, 3)))
    };
    let config = every_matmul().with_recipe(Recipe::bf16());
    let (found, report) = config.scope(|| trace(|| run(&a, &b)));
    says(&report.products[0].ran, ["rounded to bf16"]);
    let rounded = |x: &[f32]| round(x).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    assert_eq!(found, Fp8Config::off().scope(|| run(&rounded(&a), &rounded(&b))));
}

#[cfg(feature = "ndarray")]
#[test]
fn a_backend_without_bf16_is_refused() {
    use burn::backend::NdArray;
    let words = ["no bf16 for products; choose FP8 or high precision"];
    refused(in_bf16().check::<NdArray>(&Default::default()), words);
    panics(|| step::<Outer<NdArray>>(in_bf16()), words);
}
