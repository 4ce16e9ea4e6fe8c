//! CubeCL on whatever adapter Wgpu finds: in CI Mesa's software Vulkan. Without Fusion, and with it where the feature is on.
#![cfg(feature = "wgpu")]

mod common;

use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::wgpu::WgpuRuntime;
use common::{delayed, golden, special};

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

#[cfg(feature = "fusion")]
mod fusion {
    use burn::backend::Wgpu;

    use super::{delayed, golden, special};

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
    fn delayed_scales_come_from_earlier_steps() {
        delayed::scales_come_from_earlier_steps::<Wgpu>();
        delayed::state_stays_finite::<Wgpu>();
    }
}
