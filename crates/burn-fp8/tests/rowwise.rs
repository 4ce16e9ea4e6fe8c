//! Scales per row and column on the CPU backends. Wgpu has a file of its own.

mod common;

use burn::backend::Flex;
use common::rowwise;

#[test]
fn products_follow_the_definition() {
    rowwise::products_follow_the_definition::<Flex>();
}

#[test]
fn shapes_and_orders_agree() {
    rowwise::shapes_and_orders_agree::<Flex>();
}

#[test]
fn non_finite_values_stay_in_their_rows() {
    rowwise::non_finite_values_stay_in_their_rows::<Flex>();
}

#[test]
fn outliers_cost_less_than_with_a_scale_per_tensor() {
    rowwise::outliers_cost_less_than_with_a_scale_per_tensor::<Flex>();
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;

    use super::rowwise;

    #[test]
    fn products_follow_the_definition() {
        rowwise::products_follow_the_definition::<NdArray>();
    }

    #[test]
    fn shapes_and_orders_agree() {
        rowwise::shapes_and_orders_agree::<NdArray>();
    }

    #[test]
    fn non_finite_values_stay_in_their_rows() {
        rowwise::non_finite_values_stay_in_their_rows::<NdArray>();
    }

    #[test]
    fn outliers_cost_less_than_with_a_scale_per_tensor() {
        rowwise::outliers_cost_less_than_with_a_scale_per_tensor::<NdArray>();
    }
}
