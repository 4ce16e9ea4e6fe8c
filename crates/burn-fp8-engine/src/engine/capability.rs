//! What a device can do in FP8, and why it does not do more.

use core::fmt;
use std::borrow::Cow;
use std::sync::Arc;

/// What a device can do in FP8: `Fp8Backend::capability`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Capability {
    /// Products run on FP8 tensor cores.
    Native(Arc<NativeDevice>),
    /// Products run on a matrix unit of the CPU, with the codes and the f32 sums of emulation.
    MatrixUnit(Arc<MatrixUnit>),
    /// Products are emulated.
    FakeQuantized {
        /// Why they do not run natively.
        reason: Cow<'static, str>,
    },
    /// Nothing that the device is asked for is computed, and nothing but this says so: products panic, and reading a tensor is an error. Or, on a CPU, the
    /// environment variable `BURN_FP8_CPU_UNIT` names no unit of this machine: products in FP8 panic.
    Unusable {
        /// What is missing.
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

/// A unit of a CPU that multiplies bf16 and sums in f32: every FP8 number is a bf16 number, so it multiplies codes exactly.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MatrixUnit {
    /// AMX-BF16 or AVX512-BF16.
    pub name: &'static str,
    /// What the CPU calls itself.
    pub cpu: String,
    /// For each faster unit: why it is not the one.
    pub passed_over: Vec<String>,
}

impl Capability {
    /// Whether products run on units that multiply FP8, tensor cores or a matrix unit of the CPU: [`Execution::Native`](crate::Execution::Native)
    /// is possible.
    pub fn is_native(&self) -> bool {
        matches!(self, Self::Native(_) | Self::MatrixUnit(_))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(device) => write!(f, "native: {device}"),
            Self::MatrixUnit(unit) => write!(f, "native: {unit}"),
            Self::FakeQuantized { reason } => write!(f, "fake-quantized: {reason}"),
            Self::Unusable { reason } => write!(f, "unusable: {reason}"),
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

impl fmt::Display for MatrixUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, cpu, passed_over } = self;
        write!(f, "{name} of {cpu}")?;
        match passed_over.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", passed_over.join("; ")),
        }
    }
}

/// Why a product was emulated on a device that runs FP8 natively.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// The product is one of a batch of matrices with several scales each.
    Batched,
    /// The products are those of attention as one operation.
    Attention,
    /// The same, where the sums of tensor cores are asked for: in which order attention's kernels on a GPU add is not known.
    SumsOfAttention,
    /// The scales are those of blocks that cuBLASLt does not take, or a matrix unit of the CPU: it does where both
    /// operands have them, and scales that are no powers of two are of as many elements along K in both.
    Blocks,
    /// Operands have several scales, which no GPU has multiplied for this project yet: tensor cores are given them where
    /// `Fp8Config::native_blocks` asks for it.
    BlocksUntried,
    /// The scales of blocks are further apart than a matrix unit of the CPU can take, which has no number below 2^-126.
    BlocksTooFarApart,
    /// cuBLASLt has no algorithm for the product, or none that its workspace suffices for: its own words, or the rule of its documentation.
    NoAlgorithm(Arc<str>),
    /// cuBLASLt cannot be set up on the device, for want of memory perhaps: why.
    Setup(Arc<str>),
    /// cuBLASLt, the driver or CubeCL failed when the product was to run on tensor cores: their own words.
    Failed(Arc<str>),
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batched => write!(f, "batched products with several scales are not native"),
            Self::Attention => write!(f, "attention as one operation is not native"),
            Self::SumsOfAttention => write!(
                f,
                "attention as one operation sums in f32: how a GPU's kernels for it add is not known"
            ),
            Self::Blocks => write!(f, "products with such scales of blocks are not native"),
            Self::BlocksUntried => write!(
                f,
                "tensor cores have not run products with several scales yet: Fp8Config::with_native_blocks(true) has them try"
            ),
            Self::BlocksTooFarApart => {
                write!(f, "scales of blocks are further apart than the matrix unit takes")
            }
            Self::NoAlgorithm(reason) => write!(f, "{reason}"),
            Self::Setup(reason) => write!(f, "cuBLASLt cannot be set up: {reason}"),
            Self::Failed(reason) => write!(f, "the native product failed: {reason}"),
        }
    }
}
