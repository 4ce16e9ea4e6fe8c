//! What can be missing, and what can fail.

use crate::capability::{ComputeCapability, DriverVersion, LibraryVersion};
use crate::plan::PlanError;
use crate::problem::Shape;
use crate::raw::driver::DriverError;
use crate::raw::lt::LtError;

/// Why FP8 products cannot run here, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// libcuda is missing.
    #[error(
        "no NVIDIA driver: none of {} was found; install the driver, or add the folder of libcuda.so.1 to LD_LIBRARY_PATH",
        list(tried)
    )]
    NoDriver {
        /// The file names that were looked for.
        tried: Vec<String>,
    },
    /// libcublasLt is missing.
    #[error(
        "no cuBLASLt: none of {} was found; install the CUDA toolkit or `pip install nvidia-cublas`, and add the folder of libcublasLt.so.13 or .12 to LD_LIBRARY_PATH",
        list(tried)
    )]
    NoCublasLt {
        /// The file names that were looked for.
        tried: Vec<String>,
    },
    /// A library lacks a function.
    #[error(
        "{library} lacks the function {function}: it is older than CUDA 12 or damaged; update it"
    )]
    MissingFunction {
        /// The library.
        library: &'static str,
        /// The first function that it lacks.
        function: &'static str,
    },
    /// There is no device with this ordinal.
    #[error(
        "there is no CUDA device {ordinal}: the driver shows {count}; see CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: u32,
        /// How many devices there are.
        count: i32,
    },
    /// The device has no FP8 tensor cores.
    #[error(
        "{name} ({compute}) has no FP8 tensor cores: they need sm_89 or newer (Ada, Hopper, Blackwell)"
    )]
    NoFp8 {
        /// The name of the device.
        name: String,
        /// Its compute capability.
        compute: ComputeCapability,
    },
    /// libcublasLt is too old.
    #[error(
        "cuBLASLt {library} is too old for FP8 on {compute}: {oldest} or newer is needed; install a newer CUDA toolkit or nvidia-cublas"
    )]
    OldCublasLt {
        /// The version found.
        library: LibraryVersion,
        /// The oldest that will do.
        oldest: LibraryVersion,
        /// The device.
        compute: ComputeCapability,
    },
    /// The driver is older than libcublasLt.
    #[error("cuBLASLt {library} needs a driver for CUDA {}.0 and the driver supports {driver}; update the driver, or install cuBLASLt {}", library.major, driver.major)]
    OldDriver {
        /// The version of the library.
        library: LibraryVersion,
        /// What the driver supports.
        driver: DriverVersion,
    },
    /// The driver refused.
    #[error("the NVIDIA driver cannot be used: {0}")]
    Driver(#[from] DriverError),
    /// cuBLASLt refused.
    #[error("cuBLASLt cannot be used: {0}")]
    CublasLt(#[from] LtError),
}

/// `a and 15 other names`.
fn list(names: &[String]) -> String {
    match names {
        [] => "no file names".to_owned(),
        [name] => name.clone(),
        [first, others @ ..] => format!("{first} and {} other names", others.len()),
    }
}

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
        "cuBLASLt {library} has no algorithm for the FP8 product {shape} on {compute}{}; another type of output, or no epilogue where it has one, may do",
        hint.map(|hint| format!(": {hint}")).unwrap_or_default()
    )]
    NoAlgorithm {
        /// The product.
        shape: Shape,
        /// The device.
        compute: ComputeCapability,
        /// The library.
        library: LibraryVersion,
        /// A gap of cuBLASLt that NVIDIA's own tests know of.
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
    /// A timed search measured nothing.
    #[error(
        "none of {candidates} algorithms for the FP8 product {shape} could be timed: what the heuristics chose stays; run it without a search"
    )]
    NotTimed {
        /// The product.
        shape: Shape,
        /// How many the heuristics named.
        candidates: usize,
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
