//! The same training on Burn 0.21 and on this Burn: an MLP of two layers, by each recipe, from the same weights, on Flex. Outputs, weights and what ran
//! each product agree to the bit; so do losses but for the order in which Burn's `mean` adds them up, which differs on some CPUs.

use burn_fp8_next::burn_fp8_core::{Filter, Recipe};

use crate::common::bits;

/// Rows, inputs, hidden, outputs.
const SHAPE: [usize; 4] = [24, 48, 64, 16];
const STEPS: usize = 20;
const LEARNING_RATE: f64 = 0.02;

fn recipes() -> [(&'static str, Recipe); 7] {
    [
        ("current", Recipe::current()),
        ("delayed", Recipe::delayed()),
        ("rowwise", Recipe::rowwise()),
        ("torchao_rowwise", Recipe::torchao_rowwise()),
        ("mxfp8", Recipe::mxfp8()),
        ("blockwise", Recipe::blockwise()),
        ("blockwise in f32", Recipe::blockwise().with_power_of_two(false)),
    ]
}

/// Numbers of many magnitudes, an outlier and a row of zeros among them.
fn numbers(seed: u64, rows: usize, columns: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    let mut numbers: Vec<f32> =
        (0..rows * columns).map(|_| (next() - 0.5) * scale * (-6.0 * next()).exp2()).collect();
    numbers[columns + 1] = 8.0 * scale;
    numbers[2 * columns..][..columns].fill(0.0);
    numbers
}

/// What a run came to: losses, and the bits of outputs and parameters and the products that ran in FP8.
struct Run {
    losses: Vec<f32>,
    exact: Exact,
}

#[derive(Debug, Default, PartialEq)]
struct Exact {
    outputs: Vec<Vec<u32>>,
    parameters: Vec<Vec<u32>>,
    products: Vec<String>,
}

/// The training loop, once; the versions of Burn differ in how tensors are called.
macro_rules! train {
    ($fp8:ident, $tensor:ident, $device:expr, $linear:expr, $gradients:expr, $read:expr) => {{
        let device = $device;
        let [rows, inputs, hidden, outputs] = SHAPE;
        let matrix = |seed, rows, columns, scale| {
            let data = burn_data(numbers(seed, rows, columns, scale), [rows, columns]);
            $tensor::<2>::from_data(data, &device)
        };
        let vector = |seed, columns| {
            let data = burn_data(numbers(seed, 3, columns, 0.1)[..columns].to_vec(), [columns]);
            $tensor::<1>::from_data(data, &device)
        };
        let (x, target) = (matrix(1, rows, inputs, 1.0), matrix(2, rows, outputs, 1.0));
        let mut w1 = matrix(3, inputs, hidden, 0.3).require_grad();
        let mut w2 = matrix(4, hidden, outputs, 0.3).require_grad();
        let mut b1 = vector(5, hidden).require_grad();
        let mut b2 = vector(6, outputs).require_grad();
        let mut run = Run { losses: vec![], exact: Exact::default() };
        for _ in 0..STEPS {
            let ((loss, y, gradients), report) = $fp8::trace(|| {
                let h = $linear(x.clone(), w1.clone(), b1.clone()).clamp_min(0.0);
                let y = $linear(h, w2.clone(), b2.clone());
                let loss = (y.clone() - target.clone()).powi_scalar(2).mean();
                ($read(loss.clone().inner()), $read(y.inner()), $gradients(loss))
            });
            run.losses.extend(loss);
            run.exact.outputs.push(bits(&y));
            run.exact.products.extend(report.fp8().map(|product| format!("{product:?}")));
            macro_rules! descend {
                ($parameter:ident) => {
                    let gradient = $parameter.grad(&gradients).expect("it has one");
                    let new = $parameter.inner() - gradient * LEARNING_RATE;
                    run.exact.parameters.push(bits(&$read(new.clone())));
                    $parameter = $tensor::from_inner(new).require_grad();
                };
            }
            descend!(w1);
            descend!(w2);
            descend!(b1);
            descend!(b2);
        }
        run
    }};
}

mod on_021 {
    use burn_021::backend::{Autodiff, Flex};
    use burn_021::tensor::TensorData;
    use burn_fp8::Fp8Backend;

    use super::*;

    type B = Fp8Backend<Autodiff<Flex>>;
    type Tensor<const D: usize> = burn_021::tensor::Tensor<B, D>;

    fn burn_data<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> TensorData {
        TensorData::new(values, shape)
    }

    fn read<const D: usize>(
        tensor: burn_021::tensor::Tensor<
            <B as burn_021::tensor::backend::AutodiffBackend>::InnerBackend,
            D,
        >,
    ) -> Vec<f32> {
        tensor.into_data().to_vec().expect("f32")
    }

    pub fn train(recipe: Recipe) -> Run {
        let config =
            burn_fp8::Fp8Config::default().with_filter(Filter::every_matmul()).with_recipe(recipe);
        config.scope(|| {
            train!(
                burn_fp8,
                Tensor,
                Default::default(),
                |x, w, b| burn_021::tensor::module::linear(x, w, Some(b)),
                |loss: Tensor<1>| loss.backward(),
                read
            )
        })
    }
}

mod on_this {
    use burn::tensor::{Device, Tensor, TensorData};
    use burn_fp8_next::ops;

    use super::*;
    use crate::common::values;

    fn burn_data<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> TensorData {
        TensorData::new(values, shape)
    }

    pub fn train(recipe: Recipe) -> Run {
        let config = burn_fp8_next::Fp8Config::default()
            .with_filter(Filter::every_matmul())
            .with_recipe(recipe);
        config.scope(|| {
            train!(
                burn_fp8_next,
                Tensor,
                Device::flex().autodiff(),
                |x, w, b| ops::linear(x, w, Some(b)),
                ops::backward,
                values
            )
        })
    }
}

#[test]
fn a_training_is_the_same_to_the_bit() {
    for (name, recipe) in recipes() {
        let [old, new] = [on_021::train(recipe), on_this::train(recipe)];
        // The input needs no gradient.
        assert_eq!(old.exact.products.len(), 5 * STEPS, "{name}");
        assert!(old.losses[STEPS - 1] < old.losses[0], "{name}: it learns");
        assert_eq!(old.exact, new.exact, "{name}");
        for (old, new) in old.losses.iter().zip(&new.losses) {
            assert!((old - new).abs() <= 1e-6 * old, "{name}: {new:e}, not {old:e}");
        }
    }
}
