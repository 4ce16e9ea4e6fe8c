//! Wgpu, on whatever adapter there is: in CI Mesa's software Vulkan.
#![cfg(feature = "wgpu")]

mod common;

use burn::backend::Wgpu;
use common::golden;

#[test]
fn codes_and_scales_are_exact() {
    golden::codes_and_scales_are_exact::<Wgpu>();
}

#[test]
fn products_and_gradients_match() {
    golden::products_and_gradients_match::<Wgpu>();
}
