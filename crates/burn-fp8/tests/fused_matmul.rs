//! Scaled products against the golden file `fused_matmul`, on the CPU backends. Wgpu has a file of its own.

mod common;

use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use common::fused;

#[test]
fn flex_climbs_the_ladder_of_jax() {
    fused::ladder_of_jax::<Flex>();
}

#[test]
fn decorators_climb_the_ladder_of_jax() {
    fused::ladder_of_jax::<Fp8Backend<Flex>>();
    fused::ladder_of_jax::<Autodiff<Flex>>();
    fused::ladder_of_jax::<Fp8Backend<Autodiff<Flex>>>();
}

#[test]
fn products_equal_those_of_torch() {
    fused::products_of_torch::<Flex>();
    fused::products_of_torch::<Fp8Backend<Autodiff<Flex>>>();
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;

    use super::fused;

    #[test]
    fn climbs_the_ladder_of_jax() {
        fused::ladder_of_jax::<NdArray>();
    }

    #[test]
    fn products_equal_those_of_torch() {
        fused::products_of_torch::<NdArray>();
    }
}
