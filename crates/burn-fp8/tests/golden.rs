//! The golden file `current_scaling` on the CPU backends. Wgpu has a file of its own.

mod common;

use burn::backend::Flex;
use common::golden;

#[test]
fn flex_codes_and_scales_are_exact() {
    golden::codes_and_scales_are_exact::<Flex>();
}

#[test]
fn flex_products_and_gradients_match() {
    golden::products_and_gradients_match::<Flex>();
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;

    use super::golden;

    #[test]
    fn codes_and_scales_are_exact() {
        golden::codes_and_scales_are_exact::<NdArray>();
    }

    #[test]
    fn products_and_gradients_match() {
        golden::products_and_gradients_match::<NdArray>();
    }
}
