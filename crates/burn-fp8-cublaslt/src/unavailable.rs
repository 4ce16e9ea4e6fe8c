//! What can be missing.

use crate::raw::driver::DriverError;
use crate::raw::lt::LtError;
use crate::version::{ComputeCapability, DriverVersion, LibraryVersion};

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
    /// NVRTC is missing.
    #[error(
        "no NVRTC, which compiles kernels: none of {} was found; install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and add the folder of libnvrtc.so.13 or .12 to LD_LIBRARY_PATH",
        list(tried)
    )]
    NoNvrtc {
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
