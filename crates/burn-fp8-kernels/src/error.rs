//! What can be wrong with a request.

use burn_fp8_core::sums::{Accumulator, AccumulatorError};
use cubecl::ir::AddressType;

use crate::element::Element;

/// Why a kernel was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The tensor has no elements. There is nothing to launch: the caller has the answer.
    #[error("a tensor of shape {shape:?} has no elements; handle it without a kernel")]
    Empty {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Shape and strides have different ranks.
    #[error("shape {shape:?} and strides {strides:?} must have the same number of dimensions")]
    Rank {
        /// The shape.
        shape: Vec<usize>,
        /// The strides.
        strides: Vec<usize>,
    },
    /// The tensor reaches beyond its buffer.
    #[error(
        "shape {shape:?} with strides {strides:?} of {element} needs {needed} bytes, the buffer has {held}"
    )]
    OutOfBounds {
        /// The shape.
        shape: Vec<usize>,
        /// The strides, in elements.
        strides: Vec<usize>,
        /// The type of the elements.
        element: Element,
        /// The bytes from the first element to the end of the last one.
        needed: u64,
        /// The bytes of the buffer.
        held: u64,
    },
    /// Fewer codes than asked for.
    #[error("{len} codes take {} bytes in whole words, the buffer has {held}", len.next_multiple_of(4))]
    Codes {
        /// The codes asked for.
        len: usize,
        /// The bytes of the buffer.
        held: u64,
    },
    /// Blocks are those of the last two dimensions, and scales of MXFP8 are a matrix.
    #[error("a tensor of shape {shape:?} is no matrix, whose blocks have scales; reshape it")]
    NoMatrix {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A block has no elements.
    #[error("blocks of {} × {} elements have none; they take one at least each way", block[0], block[1])]
    Block {
        /// Its rows and columns.
        block: [usize; 2],
    },
    /// A tensor of f32 is needed.
    #[error("products of values and scales are f32, this tensor is {element}; cast it first")]
    Element {
        /// The type of its elements.
        element: Element,
    },
    /// A scalar on the device is not one f32.
    #[error("a scale or amax on the device takes 4 bytes, this buffer has {held}")]
    Scalar {
        /// The bytes of the buffer.
        held: u64,
    },
    /// An accumulator is out of range.
    #[error(transparent)]
    Accumulator(#[from] AccumulatorError),
    /// The terms of a block come to more than 32 bits hold.
    #[error(
        "the sum of a block takes more than 32 bits: {accumulator}; multiply with `burn_fp8_core::sums::dot`"
    )]
    WideSum {
        /// How it would be added.
        accumulator: Accumulator,
    },
    /// The buffer starts where words of 4 bytes cannot be read.
    #[error(
        "a buffer starts at byte {offset} of its allocation; make it contiguous: it must be a multiple of 4"
    )]
    Misaligned {
        /// Where it starts.
        offset: u64,
    },
    /// The runtime has no addresses of this size.
    #[error(
        "{elements} elements need {needed:?} addresses, which this device does not have; split the tensor"
    )]
    TooLarge {
        /// The elements to be reached, gaps between them included.
        elements: u64,
        /// What would be needed.
        needed: AddressType,
    },
}
