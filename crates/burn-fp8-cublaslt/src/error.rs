//! What can fail.

use crate::plan::PlanError;
use crate::problem::Shape;
use crate::raw::driver::DriverError;
use crate::raw::lt::{LtError, status_name};
use crate::unavailable::Unavailable;
use crate::version::{ComputeCapability, LibraryVersion};

/// Why a product did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A library or the device will not do.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The product breaks a rule.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No context is current, or not the one that this was made for.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// A call does not fit the product that it was prepared for.
    #[error("{argument} of the FP8 product {shape}: {problem}")]
    Call {
        /// The product.
        shape: Shape,
        /// The pointer or factor.
        argument: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// cuBLASLt knows no algorithm for a product that breaks no documented rule.
    #[error(
        "cuBLASLt {library} has no algorithm for the FP8 product {shape} on {compute}, its heuristics {}{}; another type of output, or no epilogue where it has one, may do",
        answer(*status),
        hint.map(|hint| format!(": {hint}")).unwrap_or_default()
    )]
    NoAlgorithm {
        /// The product.
        shape: Shape,
        /// The device.
        compute: ComputeCapability,
        /// The library.
        library: LibraryVersion,
        /// What the heuristics answered, a `cublasStatus_t`: 15 (`NOT_SUPPORTED`), 7 (`INVALID_VALUE`), or 0 with an empty list.
        status: i32,
        /// The [gap](crate::Plan::gap) in cuBLASLt's coverage that the product falls into.
        hint: Option<&'static str>,
    },
    /// The workspace is too small for every algorithm.
    #[error(
        "a workspace of {available} bytes is too small for the FP8 product {shape}: {needed} are needed; CublasLt::with_workspace makes a larger one"
    )]
    Workspace {
        /// The product.
        shape: Shape,
        /// The size of the workspace.
        available: usize,
        /// What the most modest algorithm that was found needs.
        needed: usize,
    },
    /// The driver gave memory that cuBLASLt cannot use as a workspace.
    #[error("the workspace at {pointer:#x} is not aligned to 256 bytes")]
    Alignment {
        /// Its address.
        pointer: u64,
    },
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// cuBLASLt failed.
    #[error(transparent)]
    CublasLt(#[from] LtError),
}

fn answer(status: i32) -> String {
    match status {
        0 => "named none".to_owned(),
        status => format!("answered {} ({status})", status_name(status)),
    }
}

/// What is wrong with the current context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// There is none.
    #[error(
        "no CUDA context is current to this thread; run inside of CubeCL's device thread or make one current"
    )]
    NoneCurrent,
    /// It is another one.
    #[error("another CUDA context is current than the one that this CublasLt was made in")]
    Other,
    /// It is not the primary context of its device.
    #[error(
        "the current CUDA context is not the primary one of its device; CubeCL, cudarc and the CUDA runtime use the primary one"
    )]
    NotPrimary,
}
