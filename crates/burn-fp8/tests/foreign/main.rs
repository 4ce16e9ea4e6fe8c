//! A backend that Burn does not know opts in with one line, and its products run in FP8: emulated with tensor operations, to the very
//! codes, scales and results of Flex, which it is made of.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;

mod backend;

use burn::backend::{Autodiff, Flex};
use burn::module::Param;
use burn::nn::Linear;
use burn::nn::loss::{MseLoss, Reduction};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::report::{Implementation, ProductReport};
use burn_fp8::{Execution, Fp8Backend, Fp8Config, high_precision, trace};

use common::{
    Inner, Outer, Random, bits, delayed, every_matmul, fused, golden, panic_of, special, tensor,
    values,
};

type Foreign = backend::Foreign<Flex>;

// All that its owner writes.
burn_fp8::fp8_backend!(Foreign);

#[test]
fn codes_and_scales_are_those_of_flax() {
    golden::codes_and_scales_are_exact::<Foreign>();
}

#[test]
fn every_rounding_and_every_special_value_is_right() {
    special::check_ties::<Foreign>();
    special::check_special::<Foreign>();
    special::check_agreement::<Foreign>();
}

#[test]
fn products_and_gradients_are_those_of_flax() {
    golden::products_and_gradients_match::<Foreign>();
}

#[test]
fn scaled_products_climb_the_ladder_of_jax() {
    fused::ladder_of_jax::<Foreign>();
    fused::products_of_torch::<Fp8Backend<Foreign>>();
    fused::special_values::<Foreign>();
}

#[test]
fn delayed_scaling_keeps_its_state() {
    delayed::scales_come_from_earlier_steps::<Foreign>();
    delayed::state_stays_finite::<Foreign>();
}

const SHAPE: [usize; 3] = [17, 40, 24];

/// Flex may have a matrix unit, which sums in another order.
fn emulated() -> Fp8Config {
    every_matmul().with_execution(Execution::FakeQuantized)
}

/// Output and gradients of a product as their bits, and what the trace says.
fn step<B: AutodiffBackend>() -> ([Vec<u32>; 3], Vec<ProductReport>) {
    let ([m, k, n], mut random) = (SHAPE, Random(31));
    let x = tensor::<B, 2>(&random.spread(m * k), [m, k]).require_grad();
    let w = tensor::<B, 2>(&random.spread(k * n), [k, n]).require_grad();
    let g = tensor::<B, 2>(&random.spread(m * n), [m, n]);
    let (results, report) = trace(|| {
        emulated().scope(|| {
            let y = x.clone().matmul(w.clone());
            let grads = (y.clone() * g).sum().backward();
            let [dx, dw] = [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")));
            [values(y), dx, dw]
        })
    });
    (results.map(|result| bits(&result)), report.products)
}

#[test]
fn training_products_are_those_of_flex_and_in_the_trace() {
    let (results, products) = step::<Outer<Foreign>>();
    assert_eq!(products.len(), 3);
    assert!(
        products.iter().all(|product| product.ran == Implementation::FakeQuantized),
        "{products:?}"
    );
    assert!((results, products) == step::<Outer<Flex>>());
    assert!(step::<Inner<Foreign>>() == step::<Inner<Flex>>());
    // The other way about, it decorates what has gradients already.
    assert_eq!(
        backend::Foreign::<Autodiff<Flex>>::name(&Default::default()),
        "foreign<autodiff<flex>>"
    );
}

#[test]
fn products_of_inference_are_those_of_flex() {
    fn product<B: Backend>() -> Vec<u32> {
        let ([m, k, n], mut random) = (SHAPE, Random(37));
        let x = tensor::<B, 2>(&random.spread(m * k), [m, k]);
        let w = tensor::<B, 2>(&random.spread(k * n), [k, n]);
        bits(&values(emulated().scope(|| x.matmul(w))))
    }
    let fp8 = product::<Fp8Backend<Foreign>>();
    assert_eq!(fp8, product::<Fp8Backend<Flex>>());
    assert_ne!(fp8, product::<Foreign>(), "FP8 rounds");
    assert_eq!(product::<Foreign>(), product::<Flex>());
}

#[test]
fn it_says_that_it_emulates_and_refuses_to_run_natively() {
    let capability = Fp8Backend::<Foreign>::capability(&Default::default());
    assert!(!capability.is_native());
    assert!(capability.to_string().contains("no native path for this backend"), "{capability}");
    let x = Tensor::<Fp8Backend<Foreign>, 2>::ones([16, 16], &Default::default());
    let native = every_matmul().with_execution(Execution::Native);
    let message = panic_of(|| native.scope(|| x.clone().matmul(x.clone())));
    assert!(message.contains("foreign<flex>"), "{message}");
    assert!(message.contains("no native path for this backend"), "{message}");
}

/// The losses of a linear layer that learns a linear map.
fn losses<B: AutodiffBackend>() -> Vec<f32> {
    let ([m, k, n], mut random) = ([64, 32, 16], Random(41));
    let mut units = |count: usize| (0..count).map(|_| random.unit()).collect::<Vec<f32>>();
    let (x, map, weight) = (units(m * k), units(k * n), units(k * n));
    let x = tensor::<B, 2>(&x, [m, k]);
    let target = high_precision(|| x.clone().matmul(tensor(&map, [k, n])));
    let mut layer = Linear::<B> { weight: Param::from_tensor(tensor(&weight, [k, n])), bias: None };
    let mut optimizer = SgdConfig::new().init();
    (0..40)
        .map(|_| {
            let y = layer.forward(x.clone());
            let loss = MseLoss::new().forward(y, target.clone(), Reduction::Mean);
            let grads = GradientsParams::from_grads(loss.backward(), &layer);
            layer = optimizer.step(5.0, layer.clone(), grads);
            values(loss)[0]
        })
        .collect()
}

#[test]
fn a_model_trains() {
    let (losses, report) = trace(losses::<Outer<Foreign>>);
    assert!(report.fp8().count() >= 80, "output and gradient of the weight of each step");
    assert!(losses[39] < losses[0] / 10.0, "{losses:?}");
    assert_eq!(bits(&losses), bits(&self::losses::<Outer<Flex>>()));
    assert_ne!(bits(&losses), bits(&self::losses::<Autodiff<Foreign>>()), "FP8 rounds");
}
