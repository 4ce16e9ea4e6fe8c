//! CubeCL on whatever adapter Wgpu finds: in CI Mesa's software Vulkan. Without Fusion, and with it where the feature is on.
#![cfg(feature = "wgpu")]

mod common;

use burn::backend::{Autodiff, Flex};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::wgpu::WgpuRuntime;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8LinearConfig};
use burn_fp8::optim::Fp8Optimizer;
use common::{
    Random, blocks, delayed, fused, golden, published, rowwise, scaled_blocks, special, tensor,
    values,
};

/// Wgpu without Fusion.
type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;

#[test]
fn codes_and_scales_are_exact() {
    golden::codes_and_scales_are_exact::<Unfused>();
}

#[test]
fn products_and_gradients_match() {
    golden::products_and_gradients_match::<Unfused>();
}

#[test]
fn ties_go_to_even_everywhere() {
    special::check_ties::<Unfused>();
}

#[test]
fn special_values() {
    special::check_special::<Unfused>();
}

#[test]
fn tensor_operations_and_slices_agree_bit_for_bit() {
    special::check_agreement::<Unfused>();
}

#[test]
fn delayed_scales_come_from_earlier_steps() {
    delayed::scales_come_from_earlier_steps::<Unfused>();
    delayed::state_stays_finite::<Unfused>();
}

#[test]
fn products_with_scales_per_row_follow_the_definition() {
    rowwise::products_follow_the_definition::<Unfused>();
    rowwise::shapes_and_orders_agree::<Unfused>();
    rowwise::non_finite_values_stay_in_their_rows::<Unfused>();
    rowwise::outliers_cost_less_than_with_a_scale_per_tensor::<Unfused>();
}

#[test]
fn products_with_scales_of_blocks_are_those_of_other_libraries() {
    blocks::layers_are_those_of_other_libraries::<Unfused>();
    blocks::shapes_and_orders_agree::<Unfused>();
    blocks::outliers_stay_in_their_blocks::<Unfused>();
    blocks::native_is_refused_in_words::<Unfused>();
}

#[test]
fn products_of_tensors_in_blocks_are_those_of_torchao_and_f64() {
    scaled_blocks::products_are_those_of_torchao::<Unfused>();
    scaled_blocks::products_are_those_of_f64::<Unfused>();
    scaled_blocks::rows_are_those_quantized_by_themselves::<Unfused>();
}

#[test]
fn published_layers_are_those_of_their_libraries() {
    published::layers_are_those_of_their_libraries::<Unfused>();
}

#[test]
fn blocks_are_those_of_slices() {
    blocks::blocks_are_those_of_slices::<Unfused>(false);
}

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
            common::assert_relative(other, flex, 3e-7, "state");
        }
        assert!(flex[0][0] != 1.0 && flex[1].iter().all(|amax| *amax > 0.0));
    }
}

#[test]
fn layers_train() {
    layers_leave_the_state_that_flex_leaves::<Unfused>();
}

#[test]
fn scaled_products_climb_the_ladder_of_jax() {
    fused::ladder_of_jax::<Unfused>();
}

#[test]
fn scaled_products_equal_those_of_torch() {
    fused::products_of_torch::<Unfused>();
}

#[test]
fn scaled_products_of_every_layout_are_the_same() {
    fused::all_layouts_give_the_same_product::<Unfused>();
}

#[test]
fn scaled_products_of_special_values() {
    fused::special_values::<Unfused>();
}

#[cfg(feature = "fusion")]
mod fusion {
    use burn::backend::Wgpu;

    use super::{blocks, delayed, fused, golden, published, rowwise, scaled_blocks, special};

    #[test]
    fn scaled_products_equal_those_of_torch() {
        fused::products_of_torch::<Wgpu>();
    }

    #[test]
    fn scaled_products_of_every_layout_are_the_same() {
        fused::all_layouts_give_the_same_product::<Wgpu>();
    }

    #[test]
    fn scaled_products_of_special_values() {
        fused::special_values::<Wgpu>();
    }

    #[test]
    fn codes_and_scales_are_exact() {
        golden::codes_and_scales_are_exact::<Wgpu>();
    }

    #[test]
    fn products_and_gradients_match() {
        golden::products_and_gradients_match::<Wgpu>();
    }

    #[test]
    fn ties_go_to_even_everywhere() {
        special::check_ties::<Wgpu>();
    }

    #[test]
    fn special_values() {
        special::check_special::<Wgpu>();
    }

    #[test]
    fn tensor_operations_and_slices_agree_bit_for_bit() {
        special::check_agreement::<Wgpu>();
    }

    #[test]
    fn products_with_scales_per_row_follow_the_definition() {
        rowwise::products_follow_the_definition::<Wgpu>();
        rowwise::shapes_and_orders_agree::<Wgpu>();
        rowwise::non_finite_values_stay_in_their_rows::<Wgpu>();
        rowwise::outliers_cost_less_than_with_a_scale_per_tensor::<Wgpu>();
    }

    #[test]
    fn products_of_tensors_in_blocks_are_those_of_torchao_and_f64() {
        scaled_blocks::products_are_those_of_torchao::<Wgpu>();
        scaled_blocks::products_are_those_of_f64::<Wgpu>();
        scaled_blocks::rows_are_those_quantized_by_themselves::<Wgpu>();
    }

    #[test]
    fn products_with_scales_of_blocks_are_those_of_other_libraries() {
        blocks::layers_are_those_of_other_libraries::<Wgpu>();
        blocks::shapes_and_orders_agree::<Wgpu>();
        blocks::outliers_stay_in_their_blocks::<Wgpu>();
    }

    #[test]
    fn published_layers_are_those_of_their_libraries() {
        published::layers_are_those_of_their_libraries::<Wgpu>();
    }

    #[test]
    fn blocks_are_those_of_slices() {
        blocks::blocks_are_those_of_slices::<Wgpu>(false);
    }

    #[test]
    fn layers_train() {
        super::layers_leave_the_state_that_flex_leaves::<Wgpu>();
    }

    #[test]
    fn delayed_scales_come_from_earlier_steps() {
        delayed::scales_come_from_earlier_steps::<Wgpu>();
        delayed::state_stays_finite::<Wgpu>();
    }

    #[test]
    fn scaled_products_climb_the_ladder_of_jax() {
        fused::ladder_of_jax::<Wgpu>();
    }
}
