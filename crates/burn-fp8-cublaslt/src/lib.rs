//! FP8 matrix products on cuBLASLt.
//!
//! - [`ScaledMatmul`] describes a product, [`plan()`] checks it against every documented rule, without a GPU.
//! - [`Capability::probe`] says whether FP8 products can run here, or [`Unavailable`] what is missing.

mod capability;
mod error;
pub mod library;
pub mod plan;
mod problem;
pub mod raw;

pub use capability::{
    Capability, ComputeCapability, DriverVersion, LibraryVersion, OLDEST_LIBRARY,
    OLDEST_LIBRARY_FOR_BLACKWELL,
};
pub use error::{ContextError, Error, Unavailable};
pub use plan::{Plan, PlanError, Rule, plan};
pub use problem::{
    Accumulation, Activation, Alignment, Aux, AuxKind, Bias, BlockScale, DataType, Epilogue,
    Matrix, Operand, ScaledMatmul, Scales, Shape,
};
