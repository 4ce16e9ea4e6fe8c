//! A backend that Burn does not know opts in with one line, and its products run in FP8: emulated with tensor operations, to the very
//! codes, scales and results of Flex, which it is made of.

use burn::nn::loss::{MseLoss, Reduction};
use burn_fp8::report::ProductReport;

use crate::backend;
use crate::common::delayed::{scales_come_from_earlier_steps, state_stays_finite};
use crate::common::fused::{
    ladder_of_jax, products_of_torch, special_values_stay_visible_or_saturate,
};
use crate::common::golden::{codes_and_scales_are_exact, products_and_gradients_match};
use crate::common::special::{
    codes_and_scales_agree_with_flex, special_values_stay_visible, ties_go_to_even,
};
use crate::common::*;

type Foreign = backend::Foreign<Flex>;

// All that its owner writes.
burn_fp8::fp8_backend!(Foreign);

tests_on!(alone: super::Foreign, [
    codes_and_scales_are_exact,
    ties_go_to_even,
    special_values_stay_visible,
    codes_and_scales_agree_with_flex,
    products_and_gradients_match,
    ladder_of_jax,
    special_values_stay_visible_or_saturate,
    scales_come_from_earlier_steps,
    state_stays_finite,
]);
tests_on!(decorated: burn_fp8::Fp8Backend<super::Foreign>, [products_of_torch]);

const SHAPE: [usize; 3] = [17, 40, 24];

/// Flex may have a matrix unit, which sums in another order.
fn emulated() -> Fp8Config {
    every_matmul().with_execution(Execution::FakeQuantized)
}

/// Output and gradients of a product as their bits, and what the trace says.
fn step<B: AutodiffBackend>() -> ([Vec<u32>; 3], Vec<ProductReport>) {
    let ([m, k, n], mut random) = (SHAPE, Random(31));
    let [x, w, g] = [m * k, k * n, m * n].map(|count| random.spread(count));
    let step = || emulated().scope(|| matrix_step::<B>([&x, &w, &g], SHAPE));
    let (results, report) = trace(step);
    (results.map(|result| bits(&result)), report.products)
}

#[test]
fn training_products_are_those_of_flex_and_in_the_trace() {
    let (results, products) = step::<Outer<Foreign>>();
    assert_eq!(products.len(), 3);
    for product in &products {
        assert_eq!(product.ran, Implementation::FakeQuantized);
    }
    assert!((results, products) == step::<Outer<Flex>>());
    assert!(step::<Inner<Foreign>>() == step::<Inner<Flex>>());
    // The other way about, it decorates what has gradients already.
    let name = backend::Foreign::<Autodiff<Flex>>::name(&Default::default());
    assert_eq!(name, "foreign<autodiff<flex>>");
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
    says(&capability, ["no native path for this backend"]);
    let x = Tensor::<Fp8Backend<Foreign>, 2>::ones([16, 16], &Default::default());
    let native = every_matmul().with_execution(Execution::Native);
    let multiply = || native.scope(|| x.clone().matmul(x.clone()));
    panics(multiply, ["foreign<flex>", "no native path for this backend"]);
}

/// The losses of a linear layer that learns a linear map.
fn losses<B: AutodiffBackend>() -> Vec<f32> {
    let ([m, k, n], mut random) = ([64, 32, 16], Random(41));
    let [x, map, weight] = [m * k, k * n, k * n].map(|count| random.units(count));
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
