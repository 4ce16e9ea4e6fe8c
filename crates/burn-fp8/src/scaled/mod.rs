//! Tensors in FP8, and one product of two of them with everything that the hardware fuses into it.

mod blocks;
mod codes;
mod file;
mod matmul;
mod options;
mod output;
mod quantize;
mod scales;
mod tensor;

pub use codes::Fp8Codes;
pub use matmul::scaled_matmul;
pub use options::ScaledMatmulOptions;
pub use output::{ScaledMatrix, ScaledOutput};
pub use tensor::Fp8Tensor;
