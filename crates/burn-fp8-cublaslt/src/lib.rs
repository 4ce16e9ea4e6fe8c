#![doc = include_str!("../README.md")]

mod algorithm;
pub mod cache;
mod call;
mod capability;
mod context;
pub mod descriptor;
mod error;
mod execute;
pub mod library;
pub mod plan;
mod problem;
pub mod raw;
mod stream;
mod unavailable;
mod version;

pub use algorithm::AlgorithmInfo;
pub use call::Pointers;
pub use capability::{Capability, OLDEST_LIBRARY, OLDEST_LIBRARY_FOR_BLACKWELL, require_device};
pub use error::{ContextError, Error};
pub use execute::{CublasLt, Launch, WORKSPACE_BYTES};
#[doc(hidden)]
pub use plan::plan_unchecked;
pub use plan::{Plan, PlanError, Rule, plan};
pub use problem::{
    Accumulation, Activation, Alignment, Batch, BlockScale, DataType, Epilogue, Matrix, Operand,
    ScaledMatmul, Scales, Shape,
};
#[doc(hidden)]
pub use raw::lt::launches;
pub use stream::Ordering;
pub use unavailable::Unavailable;
pub use version::{ComputeCapability, DriverVersion, LibraryVersion};
