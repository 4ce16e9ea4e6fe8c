//! Tensors in FP8, and one product of two of them with everything that the hardware fuses into it.

mod assign;
mod handle;
mod matmul;
mod options;
mod quantize;
mod rows;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub use crate::backend::{Fp8QTensor, QCodes};
pub use assign::assign_rows;
pub use handle::Fp8Tensor;
pub use matmul::scaled_matmul;
pub use options::{ScaledMatmulOptions, ScaledMatrix, ScaledOutput};
