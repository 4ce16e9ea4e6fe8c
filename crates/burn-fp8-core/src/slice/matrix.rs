//! Matrices, row by row in memory, with a scale for each row or each column: [`blocks`] of that shape.

use super::blocks::{self, Blocks, TASK, for_each_chunk};
use super::{Source, pass, same_length};
use crate::{Fp8Format, Overflow};

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Those of a row: as many scales as rows.
    Rows,
    /// Those of a column: as many scales as columns.
    Columns,
}

/// A matrix without its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// How many columns it has. Not 0.
    pub columns: usize,
    /// Which elements share a scale.
    pub axis: Axis,
}

impl Scaled {
    fn blocks(self) -> Blocks {
        let Self { columns, axis } = self;
        let block = match axis {
            Axis::Rows => [1, columns],
            Axis::Columns => [usize::MAX, 1],
        };
        Blocks { columns, block }
    }
}

/// [`blocks::amax`] of rows or columns.
///
/// # Panics
/// If `x` is no whole number of rows, or `amax` has another length than there are rows or columns.
pub fn amax<S: Source>(x: &[S], matrix: Scaled, amax: &mut [f32]) {
    match x {
        // Columns have scales where there are no rows.
        [] => amax.fill(0.0),
        x => blocks::amax(x, matrix.blocks(), amax),
    }
}

/// [`blocks::encode_with`] scales of rows or columns.
///
/// # Panics
/// If the slices do not have the lengths of one matrix.
pub fn encode<S: Source>(
    x: &[S],
    matrix: Scaled,
    scales: &[f32],
    format: Fp8Format,
    overflow: Overflow,
    codes: &mut [u8],
) {
    let scales = if x.is_empty() { &[] } else { scales };
    blocks::encode_with(x, matrix.blocks(), scales, format, overflow, codes);
}

/// [`blocks::round_with`] scales of rows or columns.
///
/// # Panics
/// If the slices do not have the lengths of one matrix.
pub fn round<S: Source>(
    x: &[S],
    matrix: Scaled,
    scales: &[f32],
    format: Fp8Format,
    overflow: Overflow,
    values: &mut [f32],
) {
    let scales = if x.is_empty() { &[] } else { scales };
    blocks::round_with(x, matrix.blocks(), scales, format, overflow, values);
}

/// Multiplies `y`, a matrix, by the scale of each row and that of each column: the epilogue of an emulated product. As
/// [`scale::of_product`](crate::scale::of_product) has it.
///
/// # Panics
/// If `y` has another length than `rows` times `columns`.
pub fn scale_in_place(y: &mut [f32], rows: &[f32], columns: &[f32]) {
    same_length(("y", y.len()), ("rows × columns", rows.len() * columns.len()));
    if y.is_empty() {
        return;
    }
    let task = TASK.div_ceil(columns.len());
    for_each_chunk(rows, y, [task, task * columns.len()], |rows, y| {
        pass::scale_rows_and_columns(y, rows, columns);
    });
}
