//! Shapes and strides reduced to what a kernel has to know, and how it reads what they describe.

use burn_fp8_core::PADDING;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Quad};
use crate::element::Element;
use crate::launch::{CUBE, array};
use crate::tensor::Input;

/// Dimensions as (size, stride), the outermost first, none of size 1, neighbours joined where one continues the other.
///
/// The row-major order of the elements is that of the tensor. A single element has no dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dims(pub(crate) Vec<(usize, usize)>);

impl Dims {
    pub(crate) fn new(shape: &[usize], strides: &[usize]) -> Self {
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(shape.len());
        for (&size, &stride) in shape.iter().zip(strides) {
            match dims.last_mut() {
                _ if size == 1 => {}
                Some((outer, outer_stride)) if *outer_stride == stride * size => {
                    (*outer, *outer_stride) = (*outer * size, stride);
                }
                _ => dims.push((size, stride)),
            }
        }
        Self(dims)
    }

    /// The same elements in the order of memory, each once: for what does not depend on the order nor on repetition.
    pub(crate) fn in_memory_order(shape: &[usize], strides: &[usize]) -> Self {
        let dims = shape.iter().copied().zip(strides.iter().copied());
        let mut dims: Vec<_> = dims.filter(|(size, stride)| *size > 1 && *stride > 0).collect();
        dims.sort_by_key(|(_, stride)| core::cmp::Reverse(*stride));
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        Self::new(&shape, &strides)
    }

    pub(crate) fn elements(&self) -> usize {
        self.0.iter().map(|(size, _)| size).product()
    }

    /// The same in units of so many elements, where they lie like that.
    fn in_units(&self, unit: usize) -> Option<Self> {
        let (&(columns, 1), rows) = self.0.split_last()? else { return None };
        let whole = |n: usize| n.is_multiple_of(unit);
        (whole(columns) && rows.iter().all(|row| whole(row.1))).then(|| {
            let rows = rows.iter().map(|&(size, stride)| (size, stride / unit));
            Self(rows.chain([(columns / unit, 1)]).collect())
        })
    }

    /// As an argument of a kernel.
    pub(crate) fn arg<R: Runtime>(&self) -> StridedLaunch<R> {
        let (mut sizes, mut strides) = (SequenceArg::new(), SequenceArg::new());
        for &(size, stride) in self.0.iter().rev() {
            sizes.push(size);
            strides.push(stride);
        }
        StridedLaunch::new(sizes, strides)
    }
}

/// Whether a tensor starts where units of 16 bytes can be read.
pub(crate) fn is_aligned(input: &Input<'_>) -> bool {
    input.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}

/// [`Dims`] in a kernel: the innermost dimension first.
#[derive(CubeType, CubeLaunch, Clone)]
pub(crate) struct Strided {
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
}

#[cube]
impl Strided {
    /// The place in memory of what is at `index` in row-major order.
    pub(crate) fn offset_of(&self, index: usize) -> usize {
        let rank = self.sizes.len().comptime();
        let mut rest = index;
        let mut offset = 0usize.runtime();
        #[unroll]
        for i in 0..rank {
            let stride = *self.strides.index(i);
            if comptime!(i + 1 == rank) {
                // The index is within the tensor, so what is left is within the outermost dimension.
                offset += rest * stride;
            } else {
                let size = *self.sizes.index(i);
                offset += (rest % size) * stride;
                rest /= size;
            }
        }
        offset
    }
}

/// How a kernel reads a tensor, known when it is compiled: in units of 16 bytes, or four elements at a time, wherever they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) of: Element,
    pub(crate) in_units: bool,
}

impl Reading {
    /// The type of what a read returns: elements one by one are widened.
    pub(crate) fn element(self) -> Element {
        if self.in_units { self.of } else { Element::F32 }
    }

    /// The words of memory that are read at a time.
    pub(crate) fn words(self) -> usize {
        if self.in_units { 4 } else { 1 }
    }

    /// The reads in flight for each unit of a cube.
    pub(crate) fn unrolled(self) -> usize {
        if self.in_units { 4 } else { 1 }
    }
}

/// A tensor as a kernel reads it.
pub(crate) struct Reads<'a> {
    handle: &'a Handle,
    /// Of units, or of elements.
    dims: Dims,
    pub(crate) reading: Reading,
}

impl<'a> Reads<'a> {
    /// As it lies in memory: in units if that is possible.
    pub(crate) fn new(input: &Input<'a>, dims: Dims) -> Self {
        match dims.in_units(input.element.per_unit()) {
            Some(dims) if is_aligned(input) => {
                let reading = Reading { of: input.element, in_units: true };
                Self { handle: input.handle, dims, reading }
            }
            _ => Self::of_elements(input, dims),
        }
    }

    /// Element by element.
    pub(crate) fn of_elements(input: &Input<'a>, dims: Dims) -> Self {
        let reading = Reading { of: input.element, in_units: false };
        Self { handle: input.handle, dims, reading }
    }

    /// The cubes in which each unit has as many reads as may be in flight.
    pub(crate) fn cubes(&self) -> usize {
        let reads = if self.reading.in_units { 1 } else { 4 };
        self.dims.elements().div_ceil(reads * self.reading.unrolled() * CUBE as usize)
    }

    pub(crate) fn handle<R: Runtime>(&self) -> ArrayArg<R> {
        array(self.handle)
    }

    pub(crate) fn arg<R: Runtime>(&self) -> SourceLaunch<R> {
        SourceLaunch::new(self.dims.elements(), self.dims.arg(), self.reading)
    }
}

/// [`Reads`] in a kernel.
#[derive(CubeType, CubeLaunch, Clone)]
pub(crate) struct Source {
    /// Of units, or of elements.
    pub(crate) count: usize,
    dims: Strided,
    #[cube(comptime)]
    pub(crate) reading: Reading,
}

/// Whether there is something at the place of a read.
#[cube]
pub(crate) fn has(source: &Source, read: usize) -> bool {
    if comptime!(source.reading.in_units) { read < source.count } else { read * 4 < source.count }
}

/// Sixteen bytes, or the f32 bits of four elements; zeros beyond the end.
#[cube]
pub(crate) fn read<N: Size>(input: &Array<Vector<u32, N>>, source: &Source, read: usize) -> Quad {
    let mut words = Quad::new(0u32);
    if comptime!(source.reading.in_units) {
        if read < source.count {
            words = Quad::reinterpret(input[source.dims.offset_of(read)]);
        }
    } else {
        #[unroll]
        for i in 0..4usize {
            if read * 4 + i < source.count {
                let index = source.dims.offset_of(read * 4 + i);
                words[i] = bits::read_element(input, index, source.reading.of);
            }
        }
    }
    words
}

/// The reads of one unit of a cube, which are a cube apart: all in flight before one is used.
#[cube]
pub(crate) fn read_several<N: Size>(
    input: &Array<Vector<u32, N>>,
    source: &Source,
    first: usize,
) -> Sequence<Quad> {
    let mut loaded = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..comptime!(source.reading.unrolled()) {
        loaded.push(read(input, source, first + comptime!(i * CUBE as usize).runtime()));
    }
    loaded
}

/// A matrix whose rows may be joined dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The dimensions that make up the rows.
    pub(crate) rows: Dims,
    /// The number of columns, and the distance between neighbours.
    pub(crate) columns: (usize, usize),
}

impl View {
    /// The last dimension as columns, those before it as rows.
    pub(crate) fn new(input: &Input<'_>) -> Self {
        match (input.shape.split_last(), input.strides.split_last()) {
            (Some((&columns, shape)), Some((&stride, strides))) => {
                Self { rows: Dims::new(shape, strides), columns: (columns, stride) }
            }
            _ => Self { rows: Dims(Vec::new()), columns: (1, 1) },
        }
    }

    pub(crate) fn row_count(&self) -> usize {
        self.rows.elements()
    }

    /// `[R', C']`.
    pub(crate) fn padded(&self) -> [usize; 2] {
        [self.row_count(), self.columns.0].map(|size| size.next_multiple_of(PADDING))
    }

    /// Whether a column is a range of memory, and a row is not.
    pub(crate) fn columns_lie_side_by_side(&self) -> bool {
        let (columns, stride) = self.columns;
        matches!(self.rows.0[..], [(_, 1)]) && (columns == 1 || stride != 1)
    }

    /// The transposed matrix, whose rows are one dimension.
    pub(crate) fn transposed(&self) -> Self {
        let (columns, stride) = self.columns;
        let row = *self.rows.0.first().unwrap_or(&(1, 1));
        Self { rows: Dims::new(&[columns], &[stride]), columns: row }
    }

    /// Whether rows are made of 16-byte units.
    pub(crate) fn in_units(&self, input: &Input<'_>) -> bool {
        let dims = Dims([&self.rows.0[..], &[self.columns]].concat());
        dims.in_units(input.element.per_unit()).is_some() && is_aligned(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_continue_each_other_are_joined() {
        let dims = |shape: &[usize], strides: &[usize]| Dims::new(shape, strides).0;
        assert_eq!(dims(&[], &[]), []);
        assert_eq!(dims(&[1, 1], &[7, 9]), []);
        assert_eq!(dims(&[2, 3, 4], &[12, 4, 1]), [(24, 1)]);
        assert_eq!(dims(&[2, 3, 4], &[24, 8, 1]), [(6, 8), (4, 1)]);
        assert_eq!(dims(&[4, 3], &[1, 4]), [(4, 1), (3, 4)]);
        assert_eq!(dims(&[5, 1, 4], &[0, 99, 1]), [(5, 0), (4, 1)]);
        assert_eq!(dims(&[2, 3], &[0, 0]), [(6, 0)]);
    }

    #[test]
    fn permuted_and_repeated_elements_are_one_range_in_memory_order() {
        let dims = |shape: &[usize], strides: &[usize]| Dims::in_memory_order(shape, strides).0;
        assert_eq!(dims(&[4, 3], &[1, 4]), [(12, 1)]);
        assert_eq!(dims(&[7, 4, 2, 3], &[0, 1, 12, 4]), [(24, 1)]);
        assert_eq!(dims(&[4, 3], &[1, 8]), [(3, 8), (4, 1)]);
        assert_eq!(dims(&[5], &[0]), []);
    }

    #[test]
    fn rows_of_whole_units_are_read_in_units() {
        let units = |shape: &[usize], strides: &[usize], unit| {
            Dims::new(shape, strides).in_units(unit).map(|dims| dims.0)
        };
        assert_eq!(units(&[4, 16], &[24, 1], 8), Some(vec![(4, 3), (2, 1)]));
        assert_eq!(units(&[4, 16], &[20, 1], 8), None);
        assert_eq!(units(&[4, 16], &[20, 1], 4), Some(vec![(4, 5), (4, 1)]));
        assert_eq!(units(&[4, 16], &[16, 1], 4), Some(vec![(16, 1)]));
        assert_eq!(units(&[2, 3, 8], &[8, 16, 1], 8), Some(vec![(2, 1), (3, 2), (1, 1)]));
        assert_eq!(units(&[16, 4], &[1, 16], 4), None);
        assert_eq!(units(&[1], &[1], 4), None);
    }
}
