//! Against what other libraries compute: Flax and JAX, torchao, TransformerEngine, DeepSeek, PyTorch, and those that publish checkpoints.
//!
//! `cargo xtask test` runs it on the CPU's matrix unit, and once more without.

mod assertions;
mod dense;
mod flax_ops;
mod flax_sequences;
mod fused_matmul;
mod max_accumulation;
mod published;

use crate::common::blocks::{
    blocks_are_those_of_slices, layers_are_those_of_other_libraries, products_are_those_of_f64,
    products_are_those_of_torchao, rows_are_those_quantized_by_themselves,
};
use crate::common::golden::{codes_and_scales_are_exact, products_and_gradients_match};
use crate::common::*;

tests_on_cpu!([
    codes_and_scales_are_exact,
    products_and_gradients_match,
    layers_are_those_of_other_libraries,
    blocks_are_those_of_slices,
    products_are_those_of_torchao,
    products_are_those_of_f64,
    rows_are_those_quantized_by_themselves,
]);
