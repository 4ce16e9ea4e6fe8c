//! The element types that can be quantized.

use burn_fp8_core::element;
use half::{bf16, f16};

/// An element type that can be quantized: `f32`, `f16` or `bf16`. Sealed.
///
/// Each value is converted to f32, exactly, before it is divided by the scale.
pub trait Source: Copy + Send + Sync + sealed::Sealed {
    /// The value as f32, exactly.
    fn to_f32(self) -> f32;
}

impl Source for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Source for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        element::f16_to_f32(self)
    }
}

impl Source for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        element::bf16_to_f32(self)
    }
}

pub(super) mod sealed {
    use half::{bf16, f16};

    use super::Source;
    use crate::slice::widen::{VECTOR, Widen};

    /// What loops need beyond single values: no part of the interface.
    #[doc(hidden)]
    pub trait Sealed: Sized {
        /// Bits of the same size, whose order is that of the magnitudes.
        type Magnitude: Copy + Default + Ord;
        /// The magnitude of infinity.
        const INFINITE: Self::Magnitude;

        /// The bits of `|x|`.
        fn magnitude(self) -> Self::Magnitude;

        /// What has these bits.
        fn from_magnitude(bits: Self::Magnitude) -> Self;

        /// Whether [`widen`](Self::widen) is faster than [`to_f32`](Source::to_f32) of each value.
        #[inline(always)]
        fn is_widened<W: Widen>(_: W) -> bool {
            false
        }

        /// A vector as f32, exactly.
        #[inline(always)]
        fn widen<W: Widen>(_: W, x: &[Self; VECTOR]) -> [f32; VECTOR]
        where
            Self: Source,
        {
            x.map(Source::to_f32)
        }
    }

    /// What a floating-point type and the unsigned integer of its size have in common.
    macro_rules! magnitudes {
        ($bits:ty) => {
            type Magnitude = $bits;
            const INFINITE: $bits = Self::INFINITY.to_bits();

            #[inline(always)]
            fn magnitude(self) -> $bits {
                self.to_bits() & (<$bits>::MAX >> 1)
            }

            #[inline(always)]
            fn from_magnitude(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
        };
    }

    impl Sealed for f32 {
        magnitudes!(u32);
    }

    impl Sealed for bf16 {
        magnitudes!(u16);
    }

    impl Sealed for f16 {
        magnitudes!(u16);

        #[inline(always)]
        fn is_widened<W: Widen>(_: W) -> bool {
            W::HAS_F16
        }

        #[inline(always)]
        fn widen<W: Widen>(widen: W, x: &[Self; VECTOR]) -> [f32; VECTOR] {
            widen.f16(x)
        }
    }
}
