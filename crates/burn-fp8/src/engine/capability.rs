//! What a device can do in FP8, and why it does not do more.

use core::fmt;
use std::borrow::Cow;
use std::sync::Arc;

/// What a device can do in FP8: [`Fp8Backend::capability`](crate::Fp8Backend::capability).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Capability {
    /// Products run on FP8 tensor cores.
    Native(Arc<NativeDevice>),
    /// Products are emulated.
    FakeQuantized {
        /// Why they do not run natively.
        reason: Cow<'static, str>,
    },
}

/// A device with FP8 tensor cores, and the libraries that drive them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NativeDevice {
    /// What the driver calls it.
    pub name: String,
    /// Its compute capability, major and minor: 8.9 for Ada, 9.0 for Hopper.
    pub compute_capability: (u32, u32),
    /// The version of CUDA that the driver supports, major and minor.
    pub driver: (u32, u32),
    /// The version of cuBLASLt.
    pub cublaslt: String,
}

impl Capability {
    /// Whether products run on FP8 tensor cores.
    pub fn is_native(&self) -> bool {
        matches!(self, Self::Native(_))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(device) => write!(f, "native: {device}"),
            Self::FakeQuantized { reason } => write!(f, "fake-quantized: {reason}"),
        }
    }
}

impl fmt::Display for NativeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, compute_capability: (major, minor), driver, cublaslt } = self;
        write!(
            f,
            "{name}, compute capability {major}.{minor}, CUDA driver {}.{}, cuBLASLt {cublaslt}",
            driver.0, driver.1
        )
    }
}

/// Why a product was emulated on a device that runs FP8 natively.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Neither operand is a plain matrix.
    Batched,
    /// The scales are per row.
    PerRow,
    /// cuBLASLt has no algorithm for the product, or none that its workspace suffices for: its own words.
    NoAlgorithm(Arc<str>),
    /// cuBLASLt cannot be set up on the device, for want of memory perhaps: why.
    Setup(Arc<str>),
    /// cuBLASLt, the driver or CubeCL failed when the product was to run on tensor cores: their own words.
    Failed(Arc<str>),
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batched => write!(f, "batched products are not native"),
            Self::PerRow => write!(f, "products with scales per row are not native"),
            Self::NoAlgorithm(reason) => write!(f, "{reason}"),
            Self::Setup(reason) => write!(f, "cuBLASLt cannot be set up: {reason}"),
            Self::Failed(reason) => write!(f, "the native product failed: {reason}"),
        }
    }
}
