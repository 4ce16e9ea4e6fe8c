//! A backend that Burn does not know opts in with one line, and its products run in FP8: emulated with tensor operations, to the very
//! codes, scales and results of Flex, which it is made of.

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

/// Flex may have a matrix unit, which sums in another order.
fn emulated() -> Fp8Config {
    every_matmul().with_execution(Execution::FakeQuantized)
}

/// Output and gradients of a product as their bits, and what the trace says.
fn run<B: AutodiffBackend>() -> ([Vec<u32>; 3], Vec<ProductReport>) {
    let tensors = [(1, [17, 40]), (2, [40, 24]), (3, [17, 24])].map(|(i, shape)| random(i, shape));
    let (results, report) = emulated().scope(|| trace(|| step::<B, 2>(tensors).map(values)));
    (results.map(|result| bits(&result)), report.products)
}

/// Those of inference.
fn product<B: Backend>() -> Vec<u32> {
    let product = || random::<B, 2>(1, [17, 40]).matmul(random(2, [40, 24]));
    bits(&values(emulated().scope(product)))
}

#[test]
fn products_are_those_of_flex_and_in_the_trace() {
    let (results, products) = run::<Outer<Foreign>>();
    assert_eq!(products.len(), 3);
    assert!(products.iter().all(|product| product.ran == Implementation::FakeQuantized));
    assert!((results, products) == run::<Outer<Flex>>());
    assert!(run::<Inner<Foreign>>() == run::<Inner<Flex>>());
    let fp8 = product::<Fp8Backend<Foreign>>();
    assert_eq!(fp8, product::<Fp8Backend<Flex>>());
    assert_ne!(fp8, product::<Foreign>(), "FP8 rounds");
    assert_eq!(product::<Foreign>(), product::<Flex>());
    // The other way about, it decorates what has gradients already.
    let name = backend::Foreign::<Autodiff<Flex>>::name(&Default::default());
    assert_eq!(name, "foreign<autodiff<flex>>");
}

#[test]
fn it_says_that_it_emulates_and_refuses_to_run_natively() {
    let capability = Fp8Backend::<Foreign>::capability(&Default::default());
    assert!(!capability.is_native());
    says(&capability, ["no native path for this backend"]);
    let x = || ones::<Fp8Backend<Foreign>, 2>([16, 16]);
    let native = every_matmul().with_execution(Execution::Native);
    panics(
        || native.scope(|| x().matmul(x())),
        ["foreign<flex>", "no native path for this backend"],
    );
}
