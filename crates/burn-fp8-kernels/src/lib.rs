#![doc = include_str!("../README.md")]

mod amax;
mod bits;
mod blocks;
mod dequantize;
mod element;
mod error;
mod grid;
mod launch;
mod layout;
mod matrix;
mod quantize;
mod reduce;
mod rescale;
mod scale;
mod sums;
mod tensor;
#[cfg(all(test, feature = "wgpu"))]
mod tests;
mod tile_e8m0;
mod unit;

pub use amax::{NonFinite, amax};
pub use blocks::{QuantizedBlocks, quantize_blocks};
pub use burn_fp8_core::{Layouts, PADDING};
pub use dequantize::{BlockCodes, dequantize, dequantize_blocks};
pub use element::Element;
pub use error::KernelError;
pub use matrix::{QuantizedMatrix, quantize_matrix};
pub use quantize::{Outputs, Quantized, quantize};
pub use rescale::rescale;
pub use scale::ScaleRule;
pub use sums::{RowCodes, multiply};
pub use tensor::{Input, Scalar};
pub use tile_e8m0::tile_e8m0;
