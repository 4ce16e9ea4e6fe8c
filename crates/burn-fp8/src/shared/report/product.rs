//! What is known of one product.

use core::fmt;

use burn_backend::DType;
use burn_fp8_core::sums::Sums;
use burn_fp8_core::{
    AttentionPrecision, Block, Fp8Format, Gemm, GemmRole, Granularity, Operand, ProductKind,
    Rejection,
};
use serde::{Serialize, Serializer};

use crate::engine::{self, Activation, Fallback, Launched, OutputType};

/// One matrix product, as it ran. As JSON: [`Report::to_json`](super::Report::to_json).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProductReport {
    /// The operation of the model that it comes from.
    pub kind: ProductKind,
    /// Its role in training.
    pub role: GemmRole,
    /// Its shape.
    pub gemm: Gemm,
    /// The format and scale of the left operand; `None` in high precision, and in attention as one operation, whose scales are many and not kept.
    pub lhs: Option<OperandReport>,
    /// The format and scale of the right operand; `None` as of the left one.
    pub rhs: Option<OperandReport>,
    /// What was made of its sums; `None` where they only were scaled and rounded to the type of the left operand, as all but those of
    /// `scaled_matmul` are. A layer adds its bias afterwards.
    pub epilogue: Option<Epilogue>,
    /// Its place under delayed scaling; `None` under current scaling.
    pub site: Option<Site>,
    /// What ran it.
    pub ran: Implementation,
}

/// How an operand was quantized.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OperandReport {
    /// Its format.
    pub format: Fp8Format,
    /// How many of its elements share a scale. Blocks of any size but MXFP8's are called [`Granularity::Blockwise`], which the products of a checkpoint
    /// and of `scaled_matmul` may have.
    pub granularity: Granularity,
    /// Its scale, the dequantization multiplier; with several scales the largest of them.
    pub scale: f32,
    /// How many of its finite elements were larger than the largest number times the scale, and became that.
    pub saturated: usize,
}

impl fmt::Display for OperandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block { along, across } = self.granularity.block(Operand::Input);
        let scale = match (along, across) {
            (usize::MAX, usize::MAX) => "scale",
            (usize::MAX, _) => "row scales to",
            _ => "block scales to",
        };
        write!(f, "{} {scale} {:.3e}", self.format, self.scale)?;
        match self.saturated {
            0 => Ok(()),
            saturated => write!(f, ", {saturated} saturated"),
        }
    }
}

/// What was made of the sums of a product in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Epilogue {
    /// Whether a matrix was added.
    pub c: bool,
    /// Whether a bias was added.
    pub bias: bool,
    /// What was applied after the bias.
    pub activation: Activation,
    /// The type of the result: `f32`, `bf16`, `f16`, `e4m3` or `e5m2`.
    pub output: &'static str,
    /// Whether the amax of the result was measured.
    pub amax: bool,
    /// Whether tensor cores were allowed to sum with fewer bits.
    pub fast_accumulation: bool,
}

impl Epilogue {
    pub(crate) fn of<F>(epilogue: &engine::Epilogue<F>, fast_accumulation: bool) -> Self {
        let output = match epilogue.output {
            OutputType::Float(dtype) => DType::from(dtype).name(),
            OutputType::Fp8 { format: Fp8Format::E4M3, .. } => "e4m3",
            OutputType::Fp8 { format: Fp8Format::E5M2, .. } => "e5m2",
        };
        let engine::Epilogue { activation, amax, .. } = *epilogue;
        let (c, bias) = (epilogue.added.is_some(), epilogue.bias.is_some());
        Self { c, bias, activation, output, amax, fast_accumulation }
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
    /// Emulated with the sums of tensor cores.
    Sums {
        /// Whose.
        sums: Sums,
        /// What is not known of the hardware, or why the product did not run natively.
        reason: Option<String>,
    },
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
            Launched::Sums { sums, reason } => Self::Sums { sums, reason },
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
            Self::Sums { sums, reason: None } => write!(f, "emulated, sums of {sums}"),
            Self::Sums { sums, reason: Some(reason) } => {
                write!(f, "emulated, sums of {sums}: {reason}")
            }
            Self::HighPrecision(reason) => write!(f, "high precision: {reason}"),
        }
    }
}

impl Serialize for Implementation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Ran {
            by: &'static str,
            kernel: Option<String>,
            reason: Option<String>,
        }
        let (by, kernel, reason) = match self {
            Self::Native { algorithm } => ("tensor_cores", Some(algorithm.clone()), None),
            Self::MatrixUnit(name) => ("matrix_unit", Some((*name).into()), None),
            Self::FakeQuantized => ("emulation", None, None),
            Self::Fallback(reason) => ("emulation", None, Some(reason.to_string())),
            Self::Sums { sums, reason } => {
                ("emulation", Some(format!("sums of {sums}")), reason.clone())
            }
            Self::HighPrecision(reason) => ("high_precision", None, Some(reason.to_string())),
        };
        Ran { by, kernel, reason }.serialize(serializer)
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
    /// The recipe has it in bf16: on this matrix unit; without one, rounded and multiplied as the backend does.
    Bf16(Option<&'static str>),
    /// Tensors of this type are left alone: f64, or no float.
    Dtype(DType),
    /// The operands are of different types.
    MixedDtypes(DType, DType),
    /// Burn has dequantized an operand for it, or multiplies quantized tensors.
    Quantized,
    /// Only the weight is in FP8: its checkpoint does not quantize activations.
    WeightOnly,
    /// A product of attention as one operation, in this precision.
    Attention(AttentionPrecision),
    /// Convolutions are left to the backend.
    Convolution,
    /// An operation of the user's own makes it: [`own_product`](super::own_product).
    Own,
}

impl fmt::Display for HighPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => write!(f, "FP8 is off"),
            Self::Filter(rejection) => write!(f, "{rejection}"),
            Self::Predicate => write!(f, "left out by the scope's predicate"),
            Self::Recipe => write!(f, "left out by the recipe"),
            Self::Bf16(Some(unit)) => write!(f, "in bf16 on {unit}, as the recipe says"),
            Self::Bf16(None) => write!(f, "rounded to bf16, as the recipe says"),
            Self::Dtype(dtype) => write!(f, "{dtype:?} tensors are left alone"),
            Self::MixedDtypes(lhs, rhs) => write!(f, "{lhs:?} times {rhs:?}"),
            Self::Quantized => write!(f, "an operand is quantized already, by Burn"),
            Self::WeightOnly => write!(f, "only the weight is in FP8"),
            Self::Attention(precision) => write!(f, "attention as one operation, in {precision}"),
            Self::Convolution => write!(f, "convolutions are left to the backend"),
            Self::Own => write!(f, "an operation of its own"),
        }
    }
}

/// The place of a product under delayed scaling, as a report shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// How many tracked products came before this one in the last step that had it.
    pub index: usize,
    /// Whether its histories could be used.
    pub status: SiteStatus,
}

/// Whether the histories of a site could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteStatus {
    /// They are of this product.
    Known,
    /// This product has not been there before: current scaling.
    New,
    /// Another product stands before this one than before, or before one that comes earlier in the pass: current scaling.
    Moved,
    /// The product before at this place had another K or N: current scaling, and new histories.
    Mismatch,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            SiteStatus::Known => write!(f, "site {}", self.index),
            SiteStatus::New => write!(f, "site {} (new)", self.index),
            SiteStatus::Moved => write!(f, "site {} (moved: current scaling)", self.index),
            SiteStatus::Mismatch => write!(f, "site {} (other K×N than before: reset)", self.index),
        }
    }
}
