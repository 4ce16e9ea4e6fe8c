//! A tensor as a matrix.

use burn_fp8_core::PADDING;

use crate::layout::Dims;
use crate::tensor::Input;

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
        let unit = input.element.per_unit();
        let whole = |n: usize| n.is_multiple_of(unit);
        self.columns.1 == 1
            && whole(self.columns.0)
            && self.rows.0.iter().all(|(_, stride)| whole(*stride))
            && input.handle.offset_start.unwrap_or(0).is_multiple_of(16)
    }
}
