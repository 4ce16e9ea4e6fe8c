//! The element types that can be quantized.

use half::{bf16, f16};

use super::element;

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

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}
