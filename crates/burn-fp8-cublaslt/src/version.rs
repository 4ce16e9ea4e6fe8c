//! Versions of what plans depend on: devices, libraries, drivers.

use core::fmt;

/// The compute capability of a device: 8.9 is Ada, 9.0 Hopper, 10.x and 12.x Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Major part.
    pub major: u32,
    /// Minor part.
    pub minor: u32,
}

impl ComputeCapability {
    /// Ada: the first with FP8 tensor cores.
    pub const SM_89: Self = Self { major: 8, minor: 9 };
    /// Hopper.
    pub const SM_90: Self = Self { major: 9, minor: 0 };
    /// Blackwell for data centers.
    pub const SM_100: Self = Self { major: 10, minor: 0 };
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// The version of libcublasLt, as its `cublasLtGetProperty` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LibraryVersion {
    /// Major part: that of CUDA.
    pub major: u32,
    /// Minor part. Since 13 no longer that of CUDA: CUDA 13.x has shipped 13.10.
    pub minor: u32,
    /// Patch level.
    pub patch: u32,
}

impl LibraryVersion {
    /// A version whose patch level does not matter.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The version of CUDA that a driver supports, for example 12.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// Major part.
    pub major: u32,
    /// Minor part.
    pub minor: u32,
}

impl DriverVersion {
    /// From the number of `cuDriverGetVersion`, for example 12040.
    pub const fn from_number(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
