//! Burn's Router: products are emulated through it on the backends behind it.

use burn::backend::{NdArray, Router};

use crate::common::delayed::{scales_come_from_earlier_steps, state_stays_finite};
use crate::common::golden::{codes_and_scales_are_exact, products_and_gradients_match};
use crate::common::special::special_values_stay_visible;
use crate::common::*;

type Routed = Router<(Flex, NdArray)>;

tests_on!(routed: super::Routed, [
    codes_and_scales_are_exact,
    products_and_gradients_match,
    special_values_stay_visible,
    scales_come_from_earlier_steps,
    state_stays_finite,
]);
