//! What kernels read: tensors and scalars on a device.

use cubecl::ir::AddressType;
use cubecl::server::Handle;

use crate::element::Element;
use crate::error::KernelError;

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
    pub(crate) fn elements(&self) -> usize {
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
        let product = |sizes: &[usize]| {
            sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64))
        };
        let gaps = shape.iter().zip(strides).map(|(size, stride)| product(&[*size - 1, *stride]));
        let span = gaps.fold(1, u64::saturating_add);
        let elements = product(shape).max(span);
        if elements > MOST_ELEMENTS {
            return Err(KernelError::TooLarge { elements, needed: AddressType::U64 });
        }
        let (needed, held) = (span * element.size() as u64, handle.size_in_used());
        if needed > held {
            let (shape, strides) = (shape.into(), strides.into());
            return Err(KernelError::OutOfBounds { shape, strides, element, needed, held });
        }
        check_words(handle)?;
        Ok(span)
    }
}

/// Far more than any device holds, and few enough that nothing computed from it overflows.
const MOST_ELEMENTS: u64 = 1 << 48;

/// Whether the words of a buffer can be read.
pub(crate) fn check_words(handle: &Handle) -> Result<(), KernelError> {
    match handle.offset_start {
        Some(offset) if offset % 4 != 0 => Err(KernelError::Misaligned { offset }),
        _ => Ok(()),
    }
}

/// Checks that a buffer holds codes, and returns how many words they take.
pub(crate) fn check_codes(codes: &Handle, len: usize) -> Result<usize, KernelError> {
    if len as u64 > MOST_ELEMENTS {
        return Err(KernelError::TooLarge { elements: len as u64, needed: AddressType::U64 });
    }
    let (words, held) = (len.div_ceil(4), codes.size_in_used());
    if (4 * words) as u64 > held {
        return Err(KernelError::Codes { len, held });
    }
    check_words(codes)?;
    Ok(words)
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
