//! Tensors in FP8, and one product of two of them with everything that the hardware fuses into it.

mod file;
mod matmul;
mod options;
mod quantize;
mod tensor;

pub use matmul::scaled_matmul;
pub use options::{ScaledMatmulOptions, ScaledMatrix, ScaledOutput};
pub use tensor::Fp8Tensor;
