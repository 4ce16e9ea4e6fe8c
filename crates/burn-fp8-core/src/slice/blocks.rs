//! Matrices, row by row in memory, with a scale for each block.
//!
//! The scale of a block follows from its amax by a [`Recipe`]: [`scale::of_block`](crate::scale::of_block). With the feature `rayon` the functions here run on rayon's
//! current pool; results do not depend on the number of threads.

use super::block_pass::Band;
use super::pass::{self, Code, Dequantized, Form};
use super::{Source, same_length};
use crate::{Fp8Format, Overflow, Recipe};

/// Elements per task: as in [`parallel`](super::parallel).
const TASK: usize = 1 << 16;

/// A matrix without its elements, and its blocks. Those at the end of a row or column are cut off by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// How many columns the matrix has. Not 0.
    pub columns: usize,
    /// The rows and the columns of a block. Not 0.
    pub block: [usize; 2],
}

impl Blocks {
    /// The rows and columns of the grid of scales for a matrix of this many elements.
    ///
    /// # Panics
    /// If they are not a whole number of rows.
    pub fn grid(self, elements: usize) -> [usize; 2] {
        let Self { columns, block: [rows_of_block, columns_of_block] } = self;
        assert!(
            columns > 0 && elements.is_multiple_of(columns),
            "{elements} elements are no whole rows of {columns}"
        );
        [(elements / columns).div_ceil(rows_of_block), columns.div_ceil(columns_of_block)]
    }

    fn check(self, elements: usize, result: usize, scales: usize) {
        same_length(("the matrix", elements), ("the result", result));
        let [rows, columns] = self.grid(elements);
        same_length(("scales", scales), ("the grid", rows * columns));
    }

    /// The scale of each column, from those of its blocks.
    fn expand(self, scales: &[f32], of_columns: &mut [f32]) {
        for (columns, scale) in of_columns.chunks_mut(self.block[1]).zip(scales) {
            columns.fill(*scale);
        }
    }
}

/// The codes of `x` divided by the scales of its blocks, and these, a grid row by row. Finite elements saturate, infinite ones stay visible:
/// [`Overflow::SaturateFinite`].
///
/// # Panics
/// If the slices do not have the lengths of one matrix and its grid.
pub fn encode<S: Source>(
    x: &[S],
    blocks: Blocks,
    format: Fp8Format,
    recipe: Recipe,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    quantize(x, blocks, (format, recipe), Code, codes, scales);
}

/// The same without the codes: the numbers that they stand for, times their scales.
///
/// # Panics
/// As [`encode`].
pub fn quantize_dequantize<S: Source>(
    x: &[S],
    blocks: Blocks,
    format: Fp8Format,
    recipe: Recipe,
    values: &mut [f32],
    scales: &mut [f32],
) {
    quantize(x, blocks, (format, recipe), Dequantized, values, scales);
}

/// The numbers that codes stand for, times the scales of their blocks, rounded once to f32.
///
/// # Panics
/// As [`encode`].
pub fn decode(codes: &[u8], blocks: Blocks, scales: &[f32], format: Fp8Format, values: &mut [f32]) {
    blocks.check(codes.len(), values.len(), scales.len());
    // A slice of its own for each task: only the grid is written elsewhere.
    let mut grid = scales.to_vec();
    for_each_band(codes, blocks, values, &mut grid, |codes, scales, values| {
        let mut of_columns = vec![0.0; blocks.columns];
        blocks.expand(scales, &mut of_columns);
        super::decode(codes, 1.0, format, values);
        for row in values.chunks_exact_mut(blocks.columns) {
            row.iter_mut().zip(&of_columns).for_each(|(value, scale)| *value *= scale);
        }
    });
}

fn quantize<S: Source, T: Send, F: Form<T> + Sync>(
    x: &[S],
    blocks: Blocks,
    (format, recipe): (Fp8Format, Recipe),
    form: F,
    y: &mut [T],
    scales: &mut [f32],
) {
    blocks.check(x.len(), y.len(), scales.len());
    for_each_band(x, blocks, y, scales, |x, scales, y| {
        let (columns, width) = (blocks.columns, blocks.block[1]);
        let band = Band { x, columns, width, recipe, form, y, scales };
        pass::run(band, format, Overflow::SaturateFinite);
    });
}

/// Runs `f` for each band of rows that share scales: its part of the matrix, of the grid and of the result.
fn for_each_band<S: Sync, T: Send>(
    x: &[S],
    blocks: Blocks,
    y: &mut [T],
    scales: &mut [f32],
    f: impl Fn(&[S], &mut [f32], &mut [T]) + Sync,
) {
    let band = blocks.block[0].min(x.len() / blocks.columns).max(1) * blocks.columns;
    let of_grid = blocks.columns.div_ceil(blocks.block[1]);
    let run = |(x, (scales, y)): (&[S], (&mut [f32], &mut [T]))| {
        let parts = scales.chunks_mut(of_grid).zip(y.chunks_mut(band));
        x.chunks(band).zip(parts).for_each(|(x, (scales, y))| f(x, scales, y));
    };
    #[cfg(feature = "rayon")]
    if x.len() > TASK && rayon::current_num_threads() > 1 {
        use rayon::prelude::*;
        let bands = TASK.div_ceil(band);
        let parts = scales.par_chunks_mut(of_grid * bands).zip(y.par_chunks_mut(band * bands));
        return x.par_chunks(band * bands).zip(parts).for_each(run);
    }
    let _ = TASK;
    run((x, (scales, y)));
}
