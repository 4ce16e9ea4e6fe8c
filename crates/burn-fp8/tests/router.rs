//! Burn's Router: products are emulated through it on the backends behind it.
#![cfg(all(feature = "router", feature = "ndarray"))]

mod common;

use burn::backend::{Flex, NdArray, Router};
use common::{delayed, golden, special};

type Routed = Router<(Flex, NdArray)>;

#[test]
fn codes_and_scales_are_exact() {
    golden::codes_and_scales_are_exact::<Routed>();
}

#[test]
fn products_and_gradients_match() {
    golden::products_and_gradients_match::<Routed>();
}

#[test]
fn special_values() {
    special::check_special::<Routed>();
}

#[test]
fn delayed_scales_come_from_earlier_steps() {
    delayed::scales_come_from_earlier_steps::<Routed>();
    delayed::state_stays_finite::<Routed>();
}
