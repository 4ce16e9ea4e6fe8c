//! Products of any shape, layout, type and recipe.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use proptest::prelude::*;

use crate::common::blocks::native_is_refused_in_words;
use crate::common::products::{
    View, assert_linear, assert_step, every_shape_and_view_follows_the_definition,
    linear_layers_follow_the_definition_in_both_orders, non_finite_values_stay_in_their_rows,
    products_follow_the_definition, recipes,
};
use crate::common::*;

tests_on_cpu!([
    products_follow_the_definition,
    every_shape_and_view_follows_the_definition,
    linear_layers_follow_the_definition_in_both_orders,
    non_finite_values_stay_in_their_rows,
    native_is_refused_in_words,
    any_step_follows_the_definition,
]);

#[test]
fn linear_layers_follow_the_definition_with_balanced_checkpoints() {
    type Checkpointed<B> = Autodiff<B, BalancedCheckpointing>;
    assert_linear::<Fp8Backend<Checkpointed<Flex>>, Checkpointed<Fp8Backend<Flex>>, 3>([2, 5, 0]);
}

#[test]
fn f64_tensors_are_left_alone_and_reported() {
    fn product<B: Backend>() -> TensorData {
        let x = random::<B, 2>(1, [32, 32]).cast(FloatDType::F64);
        x.clone().matmul(x).into_data()
    }
    let (y, report) = trace(product::<Outer<Flex>>);
    assert_eq!((y.dtype, &y), (DType::F64, &product::<Flex>()));
    assert_eq!(reasons(&report), [HighPrecision::Dtype(DType::F64)]);
}

/// A product with its output gradient: sizes of batch, M, K and N; whether the right operand is a batch, too; numbers, and how operands lie in memory.
#[derive(Clone, Debug)]
struct Step {
    shape: [usize; 4],
    batched: bool,
    numbers: [Vec<f32>; 3],
    views: [View; 2],
    recipe: Recipe,
}

/// Numbers of a magnitude for all, and of one for each relative to it.
fn numbers(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let element = (-1f32..1.0, -16i32..0).prop_map(|(x, exponent)| x * 2f32.powi(exponent));
    (-60i32..40, prop::collection::vec(element, count)).prop_map(|(exponent, values)| {
        values.into_iter().map(|x| x * 2f32.powi(exponent)).collect()
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let shape = [1usize..4, 1usize..24, 1usize..40, 1usize..24];
    (shape, any::<bool>()).prop_flat_map(|(shape @ [b, m, k, n], batched)| {
        let stacks = if batched { b } else { 1 };
        let numbers = [numbers(b * m * k), numbers(stacks * k * n), numbers(b * m * n)];
        let view = || prop::sample::select(View::ALL.to_vec());
        let recipe = prop::sample::select(recipes().to_vec());
        (numbers, [view(), view()], recipe).prop_map(move |(numbers, views, recipe)| Step {
            shape,
            batched,
            numbers,
            views,
            recipe,
        })
    })
}

fn any_step_follows_the_definition<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let config = ProptestConfig { cases: 200, ..ProptestConfig::default() };
    proptest!(config, |(step in any_step())| {
        let [b, m, k, n] = step.shape;
        let [x, w, g] = &step.numbers;
        let stacks = if step.batched { b } else { 1 };
        let x = step.views[0].of(tensor::<Outer<B>, 3>(x, [b, m, k]));
        let w = step.views[1].of(tensor::<Outer<B>, 3>(w, [stacks, k, n]));
        assert_step([x, w, tensor(g, [b, m, n])], step.recipe, "any");
    });
}
