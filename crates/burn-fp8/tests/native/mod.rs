//! The native path without tensor cores: everything but the GEMM itself, on whatever adapter Wgpu finds. What the emulation on
//! Flex gives is the reference.
mod fallback;
mod frozen;

use burn::backend::wgpu::WgpuDevice;
use burn::tensor::{Shape, TensorMetadata};
use burn_fp8::burn_fp8_core::{Layouts, Overflow, Products};
use burn_fp8::cpu::slice;
use burn_fp8::engine::cube::pretend_tensor_cores;
use burn_fp8::engine::host::primitive;
use burn_fp8::engine::portable::codes::into_bytes;
use burn_fp8::engine::{Codes, Fallback, Request, Scalar, ScaleRule, Scales, Wanted};

use crate::Unfused;
use crate::common::*;

#[track_caller]
fn assert_near(actual: &[f32], expected: &[f32], what: &str) {
    assert!(expected.iter().any(|x| *x != 0.0), "{what}: nothing but zeros to compare with");
    assert_close(actual, expected, 2e-6, what);
}

fn decoded() -> Implementation {
    Implementation::Native { algorithm: "decoded".into() }
}

/// The output and both gradients of a product, and what ran.
fn step<B: Fp8Matmul>(config: Fp8Config, seed: u64, dims: [usize; 4]) -> (Vec<Vec<f32>>, Report) {
    let [batch, m, k, n] = dims;
    trace(|| {
        config.scope(|| {
            // The left operand is permuted, the gradient is not uniform.
            let x = random::<Outer<B>, 3>(seed, [m, batch, k]).require_grad();
            let w = random::<Outer<B>, 2>(seed + 1, [k, n]).require_grad();
            let g = random::<Outer<B>, 3>(seed + 2, [batch, m, n]);
            let y = x.clone().swap_dims(0, 1).matmul(w.clone().unsqueeze::<3>());
            let grads = (y.clone() * g).sum().backward();
            vec![values(y), grad(&x, &grads), grad(&w, &grads)]
        })
    })
}

fn config(recipe: Recipe) -> Fp8Config {
    every_matmul().with_recipe(recipe).with_native_blocks(true)
}

fn products_are_those_of_the_emulation<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    let recipes = [
        Recipe::current(),
        Recipe::current().with_power_of_two(true).with_margin(1),
        Recipe::rowwise(),
        Recipe::mxfp8(),
        Recipe::blockwise(),
        Recipe::blockwise().with_power_of_two(false).with_margin(1),
    ];
    let dims =
        [[1, 16, 16, 16], [2, 17, 33, 19], [1, 1, 5, 1], [3, 40, 64, 48], [1, 140, 300, 150]];
    for (recipe, dims) in recipes.into_iter().flat_map(|recipe| dims.map(|dims| (recipe, dims))) {
        let native = config(recipe).with_execution(Execution::Native);
        let emulated = config(recipe).with_execution(Execution::FakeQuantized);
        let (actual, ran) = step::<B>(native, 7, dims);
        let (expected, reference) = step::<Flex>(emulated, 7, dims);
        for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_near(actual, expected, &format!("{dims:?} {recipe} result {index}"));
        }
        assert_eq!(ran.products.len(), 3, "{ran}");
        for (product, reference) in ran.products.iter().zip(&reference.products) {
            assert_eq!(product.ran, decoded(), "{ran}");
            assert_eq!((product.role, product.gemm), (reference.role, reference.gemm));
            assert_eq!((product.lhs, product.rhs), (reference.lhs, reference.rhs), "{ran}");
        }
    }
}

/// Which of the three products are in FP8 decides what is quantized, in which layouts, and what is saved.
fn any_of_the_products_can_be_in_high_precision<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    for mask in 0..8 {
        let precision = |role: u32| match mask >> role & 1 {
            0 => Precision::Fp8,
            _ => Precision::High,
        };
        let products =
            Products { output: precision(0), grad_input: precision(1), grad_weight: precision(2) };
        let recipe = Recipe { products, ..Recipe::current() };
        let (actual, ran) = step::<B>(config(recipe), 11, [2, 18, 24, 20]);
        let emulated = config(recipe).with_execution(Execution::FakeQuantized);
        let (expected, _) = step::<Flex>(emulated, 11, [2, 18, 24, 20]);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_near(actual, expected, &format!("{products:?}"));
        }
        for product in &ran.products {
            let native = matches!(product.ran, Implementation::Native { .. });
            assert_eq!(native, products.in_fp8(product.role), "{ran}");
        }
        let roles: Vec<_> = ran.products.iter().map(|product| product.role).collect();
        assert_eq!(roles, GemmRole::ALL, "{ran}");
    }
}

/// Steps of delayed scaling: histories, scales and parameters are those of the emulation, with micro-batches that share a weight.
fn delayed_scaling_is_that_of_the_emulation<B: Fp8Matmul>() {
    fn train<B: Fp8Matmul>(execution: Execution) -> (Vec<f32>, Vec<Vec<f32>>) {
        let config = config(Recipe::delayed()).with_execution(execution);
        let mut model: Linear<Outer<B>> = LinearConfig::new(24, 20).init(&Default::default());
        model.weight = model.weight.map(|_| random(3, [24, 20]).require_grad());
        model.bias = model.bias.map(|bias| bias.map(|_| random(4, [20]).require_grad()));
        let state = DelayedState::new();
        let mut optimizer = SgdConfig::new().init();
        for step in 0..4 {
            let grads = state.step(|| {
                config.scope(|| {
                    let losses = (0..2).map(|micro| {
                        let x = random(100 + 2 * step + micro, [18, 24]);
                        let g = random::<Outer<B>, 2>(200 + 2 * step + micro, [18, 20]);
                        (model.forward(x) * g).sum()
                    });
                    losses.map(|loss| loss.backward()).collect::<Vec<_>>()
                })
            });
            for grads in grads {
                let grads = GradientsParams::from_grads(grads, &model);
                model = optimizer.step(1e-3, model, grads);
            }
        }
        let record = state.export();
        let histories = record
            .sites
            .iter()
            .flat_map(|site| [&site.input, &site.weight, &site.output_grad])
            .map(|history| history.entries().to_vec());
        (values(model.weight.val()), histories.collect())
    }
    let _pretend = pretend_tensor_cores();
    let (weight, histories) = train::<B>(Execution::Native);
    let (expected, reference) = train::<Flex>(Execution::FakeQuantized);
    assert_near(&weight, &expected, "the weight");
    assert_eq!(histories.len(), 3);
    for (index, (history, expected)) in histories.iter().zip(&reference).enumerate() {
        assert_near(history, expected, &format!("history {index}"));
    }
}

/// FP8 layers: the same state and nearly the same output as on Flex.
fn layers_multiply_natively<B: Fp8Matmul>() {
    fn train<B: Fp8Matmul>(execution: Execution) -> (Vec<Vec<f32>>, Report) {
        let dot = Fp8DotGeneralConfig::new().with_amax_history_length(3);
        let mut layer = Fp8LinearConfig::new(20, 18)
            .with_bias(false)
            .with_dot(dot)
            .init::<Autodiff<B>>(&Default::default());
        layer.weight = layer.weight.map(|_| random(1, [20, 18]).require_grad());
        let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
        let mut outputs = vec![];
        let (layer, report) = trace(|| {
            for step in 0..4 {
                let config = Fp8Config::default().with_execution(execution);
                let loss = config.scope(|| {
                    let x = random::<Autodiff<B>, 2>(10 + step, [9, 20]).require_grad();
                    let y = layer.forward(x);
                    outputs.push(values(y.clone()));
                    (y * random(20 + step, [9, 18])).sum()
                });
                let grads = GradientsParams::from_grads(loss.backward(), &layer);
                layer = optimizer.step(1e-3, layer, grads);
            }
            layer
        });
        let states = [&layer.dot.input, &layer.dot.kernel, &layer.dot.output_grad];
        let state = states.iter().flat_map(|s| [&s.scale, &s.amax_history]);
        outputs.extend(state.map(|param| values(param.val())));
        outputs.push(values(layer.weight.val()));
        (outputs, report)
    }
    let _pretend = pretend_tensor_cores();
    let (actual, ran) = train::<B>(Execution::Native);
    let (expected, _) = train::<Flex>(Execution::FakeQuantized);
    for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        assert_near(actual, expected, &format!("result {index}"));
    }
    assert_eq!(ran.products.len(), 12);
    assert!(
        ran.products.iter().all(|product| matches!(product.ran, Implementation::Native { .. })),
        "{ran}"
    );
}

/// NaN and infinities stay visible where they were.
fn special_values_stay_visible<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    let config = config(Recipe::current()).with_execution(Execution::Native);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = Random(5).spread(17 * 20);
        x[3 * 20 + 7] = special;
        let x = tensor::<Fp8Backend<B>, 2>(&x, [17, 20]);
        let w = random::<Fp8Backend<B>, 2>(6, [20, 18]);
        let y = values(config.scope(|| x.matmul(w)));
        for (index, y) in y.iter().enumerate() {
            assert_eq!(y.is_nan(), index / 18 == 3, "{special} gives {y} at {index}");
        }
    }
}

/// One product with everything fused into it, as the node of a stream that it is on tensor cores: as on Flex.
fn scaled_products_are_those_of_flex<B: Fp8Matmul>() {
    fn run<B: Fp8Matmul>() -> Vec<Vec<f32>> {
        let (m, n, k) = (17, 18, 20);
        let a = Fp8Tensor::<B, 2>::quantize(random(1, [m, k]), E4M3);
        let b = Fp8Tensor::<B, 2>::quantize(random(2, [n, k]), E5M2).transpose();
        let float = scaled_matmul(&a, &b, &ScaledMatmulOptions::default()).expect("it is valid");
        let scale = Tensor::<B, 1>::from_floats([2.0], &Default::default());
        let options =
            ScaledMatmulOptions::fp8(E5M2, scale).with_activation(Activation::Relu).with_amax();
        let fp8 = scaled_matmul(&a, &b, &options).expect("it is valid");
        let amax = fp8.amax.clone().expect("asked for");
        vec![values(float.into_float()), values(fp8.into_fp8().dequantize()), values(amax)]
    }
    let _pretend = pretend_tensor_cores();
    for (index, (actual, expected)) in run::<B>().iter().zip(&run::<Flex>()).enumerate() {
        assert_near(actual, expected, &format!("result {index}"));
    }
}

/// Batches of matrices, some of them views, and some that products share.
fn batches_are_those_of_the_emulation<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    let step = |config: Fp8Config, [lhs, rhs]: [[usize; 2]; 2], [m, k, n]: [usize; 3]| {
        fn run<B: Fp8Matmul>([lhs, rhs]: [[usize; 2]; 2], [m, k, n]: [usize; 3]) -> Vec<Vec<f32>> {
            let x = random::<Outer<B>, 4>(3, [lhs[0], m, lhs[1], k]).require_grad();
            let w = random::<Outer<B>, 4>(4, [rhs[0], rhs[1], n, k]).require_grad();
            let y = x.clone().swap_dims(1, 2).matmul(w.clone().swap_dims(2, 3));
            let g = random::<Outer<B>, 4>(5, y.dims());
            let grads = (y.clone() * g).sum().backward();
            vec![values(y), grad(&x, &grads), grad(&w, &grads)]
        }
        let shapes = ([lhs, rhs], [m, k, n]);
        let native = config.with_execution(Execution::Native);
        let (actual, ran) = trace(|| native.scope(|| run::<B>(shapes.0, shapes.1)));
        let emulated = config.with_execution(Execution::FakeQuantized);
        let (expected, reference) = trace(|| emulated.scope(|| run::<Flex>(shapes.0, shapes.1)));
        for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_near(actual, expected, &format!("{shapes:?} result {index}"));
        }
        assert_eq!(ran.products.len(), 3, "{ran}");
        for (product, reference) in ran.products.iter().zip(&reference.products) {
            assert_eq!(product.ran, decoded(), "{ran}");
            assert_eq!((product.role, product.gemm), (reference.role, reference.gemm));
            assert_eq!((product.lhs, product.rhs), (reference.lhs, reference.rhs), "{ran}");
        }
    };
    for recipe in [Recipe::current(), Recipe::delayed()] {
        step(config(recipe), [[2, 3], [2, 3]], [32, 16, 48]);
        step(config(recipe), [[2, 3], [2, 3]], [5, 33, 19]);
        step(config(recipe), [[2, 3], [1, 3]], [17, 16, 3]);
        step(config(recipe), [[1, 2], [3, 1]], [1, 40, 17]);
    }
}

/// A scale that is given comes back as it was given, and the codes are those of the core.
fn given_scales_are_kept<B: Fp8Matmul>() {
    let values = Random(9).spread(3 * 21);
    for scale in [1.0, 0.37] {
        let mut codes = vec![0; values.len()];
        slice::encode(&values, scale, E4M3, Overflow::Saturate, &mut codes);
        let device =
            Scalar::Device(primitive(Tensor::<B, 1>::from_floats([scale], &Default::default())));
        for given in [Scalar::Host(scale), device] {
            let rule = ScaleRule::Given(given, Overflow::Saturate);
            let x = || primitive(random::<B, 2>(9, [3, 21]));
            let request = |wanted| Request::whole(E4M3, rule.clone(), wanted);
            let matrix = B::fp8_quantize(x(), request(Wanted::Lines(Layouts::Rows)));
            let Scales::One(kept) = &matrix.scales else { panic!("one for all") };
            assert_eq!((kept.clone().read::<B>(), matrix.amax.is_none()), (scale, true));
            let Some(Codes::Padded(words, shape)) = &matrix.codes else { panic!("asked for") };
            assert_eq!(*shape, Shape::new([3, 21]));
            assert_eq!(words.shape(), Shape::new([16, 8]));
            let padded = matrix.codes.clone().expect("asked for");
            assert_eq!(into_bytes::<B>(padded, E4M3), codes);
            // What an emulated product saves, and what an FP8 tensor holds: one byte an element, in whole words.
            for wanted in [Wanted::CodesAndValues, Wanted::Codes] {
                let matrix = B::fp8_quantize(x(), request(wanted));
                let Scales::One(kept) = &matrix.scales else { panic!("one for all") };
                assert_eq!(kept.clone().read::<B>(), scale);
                let kept = matrix.codes.expect("asked for");
                assert_eq!((kept.bytes_held(), into_bytes::<B>(kept, E4M3)), (64, codes.clone()));
            }
        }
    }
}

#[test]
fn native_execution_needs_tensor_cores() {
    let capability = Fp8Backend::<Unfused>::capability(&WgpuDevice::default());
    assert!(!capability.is_native());
    says(capability, ["CUDA"]);
}

on_wgpu!([
    products_are_those_of_the_emulation,
    batches_are_those_of_the_emulation,
    any_of_the_products_can_be_in_high_precision,
    delayed_scaling_is_that_of_the_emulation,
    layers_multiply_natively,
    scaled_products_are_those_of_flex,
    given_scales_are_kept,
    special_values_stay_visible,
]);
