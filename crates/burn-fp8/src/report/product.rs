//! What is known of one product.

use core::fmt;

use burn::tensor::DType;
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Granularity, ProductKind, Rejection};

use super::site::Site;
use crate::engine::{Fallback, Launched};

/// One matrix product, as it ran.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductReport {
    /// The operation of the model that it comes from.
    pub kind: ProductKind,
    /// Its role in training.
    pub role: GemmRole,
    /// Its shape.
    pub gemm: Gemm,
    /// The format and scale of the left operand; `None` in high precision.
    pub lhs: Option<OperandReport>,
    /// The format and scale of the right operand; `None` in high precision.
    pub rhs: Option<OperandReport>,
    /// Its place under delayed scaling; `None` under current scaling.
    pub site: Option<Site>,
    /// What ran it.
    pub ran: Implementation,
}

/// How an operand was quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperandReport {
    /// Its format.
    pub format: Fp8Format,
    /// How many of its elements share a scale. Blocks of any size but MXFP8's are called [`Granularity::Blockwise`], which the products of a checkpoint
    /// and of [`scaled_matmul`](crate::scaled_matmul) may have.
    pub granularity: Granularity,
    /// Its scale, the dequantization multiplier; with several scales the largest of them.
    pub scale: f32,
    /// How many of its finite elements were larger than the largest number times the scale, and became that.
    pub saturated: usize,
}

impl fmt::Display for OperandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = match self.granularity {
            Granularity::PerTensor => "scale",
            Granularity::PerRow => "row scales to",
            Granularity::Mx(_) | Granularity::Blockwise => "block scales to",
        };
        write!(f, "{} {scale} {:.3e}", self.format, self.scale)?;
        match self.saturated {
            0 => Ok(()),
            saturated => write!(f, ", {saturated} saturated"),
        }
    }
}

/// What ran a product.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// FP8 tensor cores.
    Native {
        /// What cuBLASLt chose.
        algorithm: String,
    },
    /// A matrix unit of the CPU: its name, AMX-BF16 or AVX512-BF16.
    MatrixUnit(&'static str),
    /// Emulated FP8: the decoded codes were multiplied in f32.
    FakeQuantized,
    /// The same, on a device that runs other products natively.
    Fallback(Fallback),
    /// Not in FP8, and why.
    HighPrecision(HighPrecision),
}

impl From<Launched> for Implementation {
    fn from(launched: Launched) -> Self {
        match launched {
            Launched::Native { algorithm } => Self::Native { algorithm },
            Launched::MatrixUnit(name) => Self::MatrixUnit(name),
            Launched::FakeQuantized => Self::FakeQuantized,
            Launched::Fallback(reason) => Self::Fallback(reason),
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native { algorithm } => write!(f, "native: {algorithm}"),
            Self::MatrixUnit(name) => write!(f, "native: {name}"),
            Self::FakeQuantized => write!(f, "fake-quantized"),
            Self::Fallback(reason) => write!(f, "fake-quantized: {reason}"),
            Self::HighPrecision(reason) => write!(f, "high precision: {reason}"),
        }
    }
}

/// Why a product did not run in FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HighPrecision {
    /// FP8 is off here: [`Fp8Config::off`](crate::Fp8Config::off) or [`high_precision`](crate::high_precision).
    Off,
    /// The filter leaves it out.
    Filter(Rejection),
    /// The predicate of [`Fp8Config::scope_where`](crate::Fp8Config::scope_where) leaves it out.
    Predicate,
    /// The recipe leaves this one of the three products out.
    Recipe,
    /// Tensors of this type are left alone: f64, or no float.
    Dtype(DType),
    /// The operands are of different types.
    MixedDtypes(DType, DType),
    /// Only the weight is in FP8: its checkpoint does not quantize activations.
    WeightOnly,
}

impl fmt::Display for HighPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => write!(f, "FP8 is off"),
            Self::Filter(rejection) => write!(f, "{rejection}"),
            Self::Predicate => write!(f, "left out by the scope's predicate"),
            Self::Recipe => write!(f, "left out by the recipe"),
            Self::Dtype(dtype) => write!(f, "{dtype:?} tensors are left alone"),
            Self::MixedDtypes(lhs, rhs) => write!(f, "{lhs:?} times {rhs:?}"),
            Self::WeightOnly => write!(f, "only the weight is in FP8"),
        }
    }
}
