//! What a backend does with FP8 codes, whatever they are for.
//!
//! [`Fp8Engine`] is what the author of a backend implements, or takes as it is with [`fp8_backend!`](crate::fp8_backend). The portable
//! defaults are tensor operations; Flex works on its memory, CubeCL's backends with kernels and, on CUDA, cuBLASLt; under Burn's Fusion each
//! operation is a node of the stream.
//!
//! Nothing here takes anything from configurations, traces, roles in training or sites: the modules above do.

mod autodiff;
mod backend;
mod backends;
mod blocks;
mod capability;
mod codes;
#[cfg(feature = "cubecl")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "fusion")]
mod fusion;
mod gemm;
mod launch;
mod matrix;
#[cfg(any(feature = "cubecl", feature = "fusion", test))]
mod padding;
pub(crate) mod portable;
mod problem;
mod quantize;
mod scalar;
mod scaled;
pub(crate) mod tensor;
mod unit;

pub(crate) use backend::finish;
pub use backend::{Fp8Engine, Untracked};
pub use blocks::{BlockCodes, QuantizeBlocks};
pub use capability::{Capability, Fallback, MatrixUnit, NativeDevice};
pub use codes::CodesPrimitive;
pub(crate) use gemm::{native_gemm, native_gemm_of_blocks};
pub use launch::{LaunchNote, Launched, Otherwise};
pub(crate) use launch::{note, raise_refusal, take_refusal};
pub use matrix::{GemmOperand, GemmOptions, QuantizeMatrix, QuantizedMatrix};
pub use problem::{NativeOutput, NativeProblem};
pub use quantize::{Quantize, QuantizeRows, Quantized, ScaleRule};
pub use scalar::Scalar;
pub(crate) use scalar::check_scale;
pub use scaled::{
    Activation, OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues,
};
pub(crate) use unit::choose_unit;
pub use unit::{QuantizedCodes, UnitOperand, UnitOptions, UnitScale};
