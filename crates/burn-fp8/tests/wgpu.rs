//! CubeCL on whatever adapter Wgpu finds: in CI Mesa's software Vulkan. Without Fusion, and with it where the feature is on.
#![cfg(feature = "wgpu")]

/// Makes tests of checks that are generic over the backend, for Wgpu without and with Fusion.
macro_rules! on_wgpu {
    ($checks:tt) => {
        crate::common::tests_on!(unfused: crate::Unfused, $checks);
        crate::common::tests_on!(#[cfg(feature = "fusion")] fused: burn::backend::Wgpu, $checks);
    };
}

mod common;
mod native;

use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::wgpu::WgpuRuntime;

use common::blocks::*;
use common::delayed::{scales_come_from_earlier_steps, state_stays_finite};
use common::fused::*;
use common::golden::{codes_and_scales_are_exact, products_and_gradients_match};
use common::products::*;
use common::published::layers_are_those_of_their_libraries;
use common::quantized::*;
use common::special::*;
use common::sums::{
    batches_have_the_sums_of_cards, layers_have_the_sums_of_cards_in_both_orders,
    scaled_products_are_split_as_they_are_told,
    scales_of_every_granularity_are_multiplied_as_on_cards,
};
use common::*;

/// Wgpu without Fusion.
type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;

on_wgpu!([
    codes_and_scales_are_those_of_the_definition,
    mxfp8_is_that_of_torchao,
    blocks_are_those_of_the_golden_data,
    every_code_stands_for_its_number,
    given_scales_are_kept,
    views_move_codes_and_scales,
    operations_between_are_those_of_the_numbers,
    products_are_those_of_the_numbers,
    records_hold_one_byte_an_element,
    other_ranks_hold_the_same,
    bad_input_is_refused,
    codes_and_scales_are_exact,
    products_and_gradients_match,
    ties_go_to_even,
    special_values_stay_visible,
    layers_have_the_sums_of_cards_in_both_orders,
    batches_have_the_sums_of_cards,
    scales_of_every_granularity_are_multiplied_as_on_cards,
    scaled_products_are_split_as_they_are_told,
    codes_and_scales_agree_with_flex,
    scales_come_from_earlier_steps,
    state_stays_finite,
    products_follow_the_definition,
    every_shape_and_view_follows_the_definition,
    linear_layers_follow_the_definition_in_both_orders,
    non_finite_values_stay_in_their_rows,
    layers_are_those_of_other_libraries,
    blocks_are_those_of_slices_but_subnormal_ones,
    native_is_refused_in_words,
    products_are_those_of_torchao,
    products_are_those_of_f64,
    rows_are_those_quantized_by_themselves,
    layers_are_those_of_their_libraries,
    layers_leave_the_state_that_flex_leaves,
    ladder_of_jax,
    products_of_torch,
    all_layouts_give_the_same_product,
    special_values_stay_visible_or_saturate,
]);

/// FP8 layers, their state and its roots: a step of the same layer on Wgpu and on Flex leaves the same state.
fn layers_leave_the_state_that_flex_leaves<B: Fp8Matmul>() {
    fn train<B: AutodiffBackend + Fp8Matmul>(mode: DotMode) -> Vec<Vec<f32>> {
        let dot = Fp8DotGeneralConfig::new().with_amax_history_length(3).with_mode(mode);
        let mut layer = Fp8LinearConfig::new(32, 16).with_dot(dot).init::<B>(&Default::default());
        let weight = Random(1).spread(32 * 16);
        layer.weight = layer.weight.map(|_| tensor(&weight, [32, 16]).require_grad());
        let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
        for step in 0..5 {
            let x = tensor::<B, 2>(&Random(10 + step).spread(8 * 32), [8, 32]);
            let g = tensor::<B, 2>(&Random(20 + step).spread(8 * 16), [8, 16]);
            let loss = (layer.forward(x) * g).sum();
            let grads = GradientsParams::from_grads(loss.backward(), &layer);
            // The weight stays, so that sums in another order change nothing.
            layer = optimizer.step(0.0, layer, grads);
        }
        let states = [&layer.dot.input, &layer.dot.kernel, &layer.dot.output_grad];
        states.iter().flat_map(|s| [&s.scale, &s.amax_history]).map(|p| values(p.val())).collect()
    }
    for mode in [DotMode::Direct, DotMode::QuantizeDequantize] {
        let flex = train::<Autodiff<Flex>>(mode);
        let other = train::<Autodiff<B>>(mode);
        assert_eq!(flex.len(), other.len());
        for (flex, other) in flex.iter().zip(&other) {
            // Division on a GPU may be off by an ulp or two; on lavapipe it is not.
            assert_relative(other, flex, 3e-7, "state");
        }
        assert!(flex[0][0] != 1.0 && flex[1].iter().all(|amax| *amax > 0.0));
    }
}
