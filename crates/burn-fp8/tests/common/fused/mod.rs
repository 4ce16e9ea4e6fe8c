//! The golden file `fused_matmul`: the ladder of scaled products by JAX, and `torch._scaled_mm`. And scaled products without a file.

mod case;
mod ladder;
mod layouts;
mod special;
mod torch;

pub use case::{Case, File};
pub use ladder::{Output, STEPS, Step, ladder_of_jax};
pub use layouts::all_layouts_give_the_same_product;
pub use special::special_values;
pub use torch::products_of_torch;

use burn::tensor::{TensorData, bf16};

/// Relative to the largest magnitude of a result: f32 sums in another order, and another tanh.
const TOLERANCE: f32 = 1e-5;

pub fn bf16_bits(data: &TensorData) -> Vec<f32> {
    let bits = data.as_bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

/// The place of a code in the order of the numbers.
pub fn order(code: u8) -> i32 {
    let magnitude = i32::from(code & 0x7F);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The place of a bf16 in the order of the numbers.
pub fn bf16_order(x: f32) -> i32 {
    let bits = bf16::from_f32(x).to_bits();
    let magnitude = i32::from(bits & 0x7FFF);
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}
