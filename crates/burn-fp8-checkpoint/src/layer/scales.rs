//! The scales of a weight, whatever they are for.

use crate::error::CheckpointError;
use crate::numbers::{is_power_of_two, is_scale};

/// Scales of blocks of a matrix: `x ≈ code × scale`.
///
/// One form for all formats. Block `[r, c]` of the grid has the rows from `r × block[0]` on and the columns from `c × block[1]` on; the last blocks may
/// be smaller. One scale per tensor is a block of the whole matrix, one per channel a block of a row, MXFP8 blocks of `[1, 32]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    block: [usize; 2],
    grid: [usize; 2],
    values: Vec<f32>,
}

impl Scales {
    /// Takes the scales of a matrix of this shape, row by row of the grid: `shape / block`, rounded up.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a size is zero, where there are more or fewer scales than blocks, or where one is not positive and finite.
    pub fn new(
        shape: [usize; 2],
        block: [usize; 2],
        values: Vec<f32>,
    ) -> Result<Self, CheckpointError> {
        let invalid = |found, expected: String| CheckpointError::invalid("scales", found, expected);
        if shape.contains(&0) || block.contains(&0) {
            let found = format!("a matrix {shape:?} in blocks {block:?}");
            return Err(invalid(found, "sizes that are not 0".into()));
        }
        let scales = Self::unchecked(shape, block, values);
        let [rows, columns] = scales.grid;
        if rows.checked_mul(columns) != Some(scales.values.len()) {
            let expected = format!("{rows} × {columns}, one for each block");
            return Err(invalid(format!("{} scales", scales.values.len()), expected));
        }
        match scales.values.iter().position(|scale| !is_scale(*scale)) {
            Some(place) => {
                let found = format!("{} at {:?}", scales.values[place], scales.at(place));
                Err(invalid(found, "a positive, finite number".into()))
            }
            None => Ok(scales),
        }
    }

    /// Scales that were checked where they come from.
    pub(crate) fn unchecked(shape: [usize; 2], block: [usize; 2], values: Vec<f32>) -> Self {
        let grid = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
        Self { block, grid, values }
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> [usize; 2] {
        self.block
    }

    /// Rows and columns of blocks.
    pub fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// The scales, row by row of the grid.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether all of them are powers of two, as stored in E8M0, or rounded to them as with `scale_fmt: ue8m0`.
    pub fn are_powers_of_two(&self) -> bool {
        self.values.iter().all(|scale| is_power_of_two(*scale))
    }

    /// The place in the grid of a place in `values`.
    fn at(&self, place: usize) -> [usize; 2] {
        [place / self.grid[1], place % self.grid[1]]
    }
}
