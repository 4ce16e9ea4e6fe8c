//! The rules that a plan can break.

use core::fmt;

/// A product that cuBLASLt cannot run: which rule it breaks, by what value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}, but {found}; {remedy}")]
pub struct PlanError {
    /// The rule.
    pub rule: Rule,
    /// The values that break it.
    pub found: String,
    /// What to do.
    pub remedy: &'static str,
}

/// Fails unless a rule is kept, with the values that break it and what to do.
pub(super) fn ensure(
    kept: bool,
    rule: Rule,
    remedy: &'static str,
    found: impl FnOnce() -> String,
) -> Result<(), PlanError> {
    if kept { Ok(()) } else { Err(PlanError { rule, found: found(), remedy }) }
}

/// A rule of cuBLASLt or of this crate.
///
/// Where nothing else is named the source is the section "cublasLtMatmul()" or "Narrow Precision Data Types Usage" of the cuBLAS
/// documentation (12.9 to 13.x), <https://docs.nvidia.com/cuda/cublas/>; "header" is `cublasLt.h` 13.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// FP8 tensor cores exist from compute capability 8.9 on.
    Device,
    /// See [`OLDEST_LIBRARY`](crate::OLDEST_LIBRARY).
    Library,
    /// M, N, K and the batch are at least 1.
    DimensionZero,
    /// Header: dimensions "usually" fit in an `int32_t`; the count of a batch is one.
    DimensionRange,
    /// A matrix spans less than 2^63 bytes.
    Extent,
    /// E5M2 × E5M2 is in no table.
    OperandFormats,
    /// D in E5M2 needs one operand in E5M2.
    OutputType,
    /// C is of D's type, or BF16 or F16 where D is FP8.
    CType,
    /// The bias is BF16 for D in BF16 or F32, F16 for F16, and of C's type for FP8.
    BiasType,
    /// Scales per row and per block of 128 exist on compute capability 9.0 alone, those of blocks of 32 from 10.0 on.
    ScaleDevice,
    /// Scales per row and per block of 128 came with cuBLASLt 12.9 (<https://github.com/NVIDIA/CUDALibrarySamples/issues/310>).
    ScaleLibrary,
    /// Scales per row and per block of 128 exclude D in FP8. With blocks of 32 D has scales of blocks too, which this crate does not ask for.
    ScaleOutput,
    /// 128×128 blocks on both sides are not supported, nor are blocks of 32 on one side.
    ScaleBlocks,
    /// With scales per block of 128 M and N are multiples of 4.
    ScaleBlockShape,
    /// Only D in FP8 is multiplied by a factor.
    ScaleD,
    /// The amax is computed for D in FP8 alone (an error since 12.4 update 1, by its release notes).
    AmaxD,
    /// K is a multiple of 16 ("Tensor Core Usage": `k * AtypeSize % 16 == 0`).
    KMultiple,
    /// Rows of C and D span multiples of 16 bytes ("Tensor Core Usage": `m * CtypeSize % 16 == 0` for cuBLASLt's m, our N).
    NMultiple,
    /// A leading dimension is at least the row.
    LdRange,
    /// Leading dimensions span multiples of 16 bytes ("Tensor Core Usage").
    LdMultiple,
    /// Matrices of a batch start at multiples of 16 bytes.
    StrideMultiple,
    /// Outputs of a batch do not overlap.
    StrideRange,
    /// Of this crate: a batch has at most one scale for each operand, and no C, epilogue, factor or amax of D. Lengths of several scales are documented for a single
    /// product.
    PlainBatch,
    /// Addresses are multiples of 16 bytes ("Tensor Core Usage"); an alignment is a power of two, at most 256.
    Alignment,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "FP8 products need compute capability 8.9 or newer",
            Self::Library => "FP8 products need a cuBLASLt that is known to be right on the device",
            Self::DimensionZero => "every dimension must be at least 1",
            Self::DimensionRange => "every dimension must be at most 2147483647",
            Self::Extent => "a matrix must span less than 2^63 bytes",
            Self::OperandFormats => "at most one operand may be E5M2",
            Self::OutputType => "an output in E5M2 needs an operand in E5M2",
            Self::CType => "C must have the type of D, or BF16 or F16 where D is FP8",
            Self::BiasType => {
                "the bias must be BF16 for D in BF16 or F32, F16 for D in F16, of C's type for D in FP8"
            }
            Self::ScaleDevice => "scales per row or per block of 128 need compute capability 9.0 (Hopper), per block of 32 10.0 or newer (Blackwell)",
            Self::ScaleLibrary => "scales per row or per block of 128 need cuBLASLt 12.9 or newer",
            Self::ScaleOutput => "scales per row or per block need D in BF16, F16 or F32",
            Self::ScaleBlocks => "at most one operand may have scales per 128×128 block, and both or none per 1×32 block",
            Self::ScaleBlockShape => "scales per block of 128 need M and N to be multiples of 4",
            Self::ScaleD => "only D in FP8 can be scaled",
            Self::AmaxD => "only D in FP8 can have an amax",
            Self::KMultiple => "K must be a multiple of 16",
            Self::NMultiple => "the N elements of a row of C and D must span a multiple of 16 bytes",
            Self::LdRange => "a leading dimension must be at least the row length",
            Self::LdMultiple => "a leading dimension must span a multiple of 16 bytes",
            Self::StrideMultiple => "a stride of a batch must span a multiple of 16 bytes",
            Self::StrideRange => "the matrices D of a batch must not overlap",
            Self::PlainBatch => "a batch must have at most one scale for each operand, and no C, epilogue, factor or amax of D",
            Self::Alignment => "addresses must be aligned to a power of two from 16 to 256 bytes",
        })
    }
}
