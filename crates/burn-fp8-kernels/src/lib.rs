//! FP8 quantization as CubeCL kernels, on any runtime.
//!
//! Codes, scales and amaxes are those of [`burn_fp8_core`], bit for bit, where the device divides f32 as IEEE 754 has it.

mod amax;
mod bits;
mod dequantize;
mod error;
mod launch;
mod layout;
mod matrix;
mod quantize;
mod reduce;
mod rescale;
mod scale;
mod strided;
mod tensor;

pub use amax::{NonFinite, amax};
pub use dequantize::dequantize;
pub use error::KernelError;
pub use matrix::{Layouts, PADDING, QuantizedMatrix, quantize_matrix};
pub use quantize::{Outputs, Quantized, quantize, quantize_dequantize};
pub use rescale::rescale;
pub use scale::ScaleRule;
pub use tensor::{Element, Input, Scalar};
