//! FP8 matrix products for Burn: wrap a backend in [`Fp8Backend`] and its matrix products run in FP8.

mod backend;
mod config;
mod error;
mod matmul;
mod report;
mod scaling;

pub use backend::Fp8Backend;
pub use burn_fp8_core::{Filter, Fp8Format, Gemm, GemmRole, ProductKind, Recipe, Rejection, Scaling};
pub use config::{Execution, Fp8Config, ProductInfo, high_precision};
pub use error::Fp8Error;
pub use matmul::{Codes, Fp8Matmul, Quantize, Quantized, SavedOperand};
pub use report::{HighPrecision, OperandReport, ProductReport, Ran, Report, trace};
pub use scaling::Scale;
