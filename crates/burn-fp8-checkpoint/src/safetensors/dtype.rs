//! The types of elements.

use std::fmt;

use serde::Deserialize;

/// Builds the enum with its names and sizes from one table.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident $bits:literal,)*) => {
        /// The type of a tensor's elements, by safetensors' names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
        #[allow(non_camel_case_types, reason = "these are safetensors' names")]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $name,)*
        }

        impl Dtype {
            /// The bits of one element.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Self::$name => $bits,)*
                }
            }

            /// The name in a header, such as `F8_E4M3`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

dtypes! {
    /// A byte that is 0 or 1.
    BOOL 8,
    /// FP4 (E2M1), two elements a byte.
    F4 4,
    /// FP6 with two exponent bits.
    F6_E2M3 6,
    /// FP6 with three exponent bits.
    F6_E3M2 6,
    /// An unsigned byte. compressed-tensors' MXFP8 keeps E8M0 scales in it.
    U8 8,
    /// A signed byte.
    I8 8,
    /// FP8 E5M2 of OCP.
    F8_E5M2 8,
    /// FP8 E4M3 of OCP (`e4m3fn`).
    F8_E4M3 8,
    /// E8M0 of OCP's microscaling formats: byte b is 2^(b − 127), 255 is NaN.
    F8_E8M0 8,
    /// FP8 E4M3 of AMD's MI300, with another bias.
    F8_E4M3FNUZ 8,
    /// FP8 E5M2 of AMD's MI300, with another bias.
    F8_E5M2FNUZ 8,
    /// A signed integer of 16 bits.
    I16 16,
    /// An unsigned integer of 16 bits.
    U16 16,
    /// IEEE half precision.
    F16 16,
    /// bfloat16.
    BF16 16,
    /// A signed integer of 32 bits.
    I32 32,
    /// An unsigned integer of 32 bits.
    U32 32,
    /// IEEE single precision.
    F32 32,
    /// A complex number of two F32.
    C64 64,
    /// IEEE double precision.
    F64 64,
    /// A signed integer of 64 bits.
    I64 64,
    /// An unsigned integer of 64 bits.
    U64 64,
}

impl Dtype {
    /// Whether elements are FP8 codes, which mean nothing without a scale.
    pub(crate) const fn is_fp8(self) -> bool {
        matches!(self, Self::F8_E4M3 | Self::F8_E5M2 | Self::F8_E4M3FNUZ | Self::F8_E5M2FNUZ)
    }

    /// The bytes of a tensor, unless they are no whole number or more than 64 bits count.
    pub(crate) fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let elements = shape
            .iter()
            .try_fold(1_u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?))?;
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
