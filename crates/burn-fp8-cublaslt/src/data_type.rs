//! Element types.

use core::fmt;

use burn_fp8_core::Fp8Format;

/// An element type of C, D, the bias or the auxiliary output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// FP8 codes.
    Fp8(Fp8Format),
}

impl DataType {
    /// Bytes of an element.
    pub const fn size(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Fp8(_) => 1,
        }
    }

    /// Whether this is an FP8 format.
    pub const fn is_fp8(self) -> bool {
        matches!(self, Self::Fp8(_))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bf16 => f.pad("BF16"),
            Self::F16 => f.pad("F16"),
            Self::F32 => f.pad("F32"),
            Self::Fp8(format) => format.fmt(f),
        }
    }
}
