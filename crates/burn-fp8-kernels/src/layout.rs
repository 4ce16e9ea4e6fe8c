//! Shapes and strides reduced to what a kernel has to know.

use crate::element::Element;

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

    /// As rows of whole 16-byte units, where the elements lie like that.
    pub(crate) fn as_units(&self, element: Element, offset: u64) -> Option<Units> {
        let unit = element.per_unit();
        let (rows, pitch, columns) = match self.0[..] {
            [(columns, 1)] => (1, columns, columns),
            [(rows, pitch), (columns, 1)] => (rows, pitch, columns),
            _ => return None,
        };
        let aligned =
            offset.is_multiple_of(16) && [pitch, columns].iter().all(|n| n.is_multiple_of(unit));
        aligned.then(|| Units { rows, columns: columns / unit, pitch: pitch / unit })
    }
}

/// Rows of 16-byte units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    pub(crate) rows: usize,
    /// Units in a row.
    pub(crate) columns: usize,
    /// Units from a row to the next.
    pub(crate) pitch: usize,
}

impl Units {
    pub(crate) fn count(self) -> usize {
        self.rows * self.columns
    }

    /// Whether there are gaps between rows, or rows that overlap.
    pub(crate) fn is_pitched(self) -> bool {
        self.rows > 1 && self.pitch != self.columns
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
    fn units_are_aligned() {
        let units = |shape: &[usize], strides: &[usize], element, offset| {
            Dims::new(shape, strides).as_units(element, offset)
        };
        assert_eq!(
            units(&[4, 16], &[24, 1], Element::Bf16, 0),
            Some(Units { rows: 4, columns: 2, pitch: 3 })
        );
        assert_eq!(units(&[4, 16], &[20, 1], Element::Bf16, 0), None);
        assert!(units(&[4, 16], &[20, 1], Element::F32, 32).is_some_and(Units::is_pitched));
        assert_eq!(units(&[4, 16], &[16, 1], Element::F32, 4), None);
        assert!(
            units(&[4, 16], &[16, 1], Element::F32, 0).is_some_and(|units| !units.is_pitched())
        );
        assert_eq!(units(&[16, 4], &[1, 16], Element::F32, 0), None);
        assert_eq!(units(&[1], &[1], Element::F32, 0), None);
    }
}
