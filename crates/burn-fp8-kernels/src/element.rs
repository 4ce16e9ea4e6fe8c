//! Element types.

use core::fmt;

/// The element types that are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `f32`.
    F32,
    /// `half::f16`. Held as pairs in u32 words and converted with integer operations: the device need not know the type.
    F16,
    /// `half::bf16`. As [`Element::F16`].
    Bf16,
}

impl Element {
    /// The bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The elements in a load of 16 bytes: a unit of work.
    pub(crate) const fn per_unit(self) -> usize {
        16 / self.size()
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}
