//! What kernels read: tensors and scalars on a device.

use core::fmt;

use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::server::Handle;

use crate::KernelError;

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
    /// The element of a CubeCL type: `None` for anything but f32, flex32 (stored as f32), f16 and bf16.
    pub fn from_storage(storage: StorageType) -> Option<Self> {
        let StorageType::Scalar(ElemType::Float(kind)) = storage else { return None };
        match kind {
            FloatKind::F32 | FloatKind::Flex32 => Some(Self::F32),
            FloatKind::F16 => Some(Self::F16),
            FloatKind::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// The bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The elements in a u32 word.
    pub(crate) const fn per_word(self) -> usize {
        4 / self.size()
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

/// A tensor on a device, of any rank and layout: permuted, sliced, broadcast (stride 0), with gaps between rows.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The buffer. The first element is at its start, offset included.
    pub handle: &'a Handle,
    /// The size of each dimension; empty for a scalar.
    pub shape: &'a [usize],
    /// The distance between neighbours along each dimension, in elements.
    pub strides: &'a [usize],
    /// The type of the elements.
    pub element: Element,
}

impl Input<'_> {
    /// The number of elements; those of a broadcast dimension count each.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks what kernels rely on, and returns how many elements lie between the first and the last one, both included.
    pub(crate) fn check(&self) -> Result<u64, KernelError> {
        let Self { handle, shape, strides, element } = *self;
        if shape.len() != strides.len() {
            return Err(KernelError::Rank { shape: shape.into(), strides: strides.into() });
        }
        if shape.contains(&0) {
            return Err(KernelError::Empty { shape: shape.into() });
        }
        let last =
            shape.iter().zip(strides).map(|(size, stride)| (*size as u64 - 1) * *stride as u64);
        let span = last.sum::<u64>() + 1;
        let (needed, held) = (span * element.size() as u64, handle.size_in_used());
        if needed > held {
            let (shape, strides) = (shape.into(), strides.into());
            return Err(KernelError::OutOfBounds { shape, strides, element, needed, held });
        }
        check_words(handle)?;
        Ok(span)
    }
}

/// Whether the words of a buffer can be read.
pub(crate) fn check_words(handle: &Handle) -> Result<(), KernelError> {
    match handle.offset_start {
        Some(offset) if offset % 4 != 0 => Err(KernelError::Misaligned { offset }),
        _ => Ok(()),
    }
}

/// A number that a kernel is given, from the host or from the device, never read back.
#[derive(Clone, Debug)]
pub enum Scalar {
    /// Known on the host.
    Host(f32),
    /// One f32 on the device.
    Device(Handle),
}

impl Scalar {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(handle) => check_scalar(handle),
        }
    }
}

/// Whether a buffer is one f32.
pub(crate) fn check_scalar(handle: &Handle) -> Result<(), KernelError> {
    match handle.size_in_used() {
        held if held < 4 => Err(KernelError::Scalar { held }),
        _ => check_words(handle),
    }
}
