//! Matrices, row by row in memory, with a scale for each block: a tensor, a row, a column, or part of them.
//!
//! The scale of a block follows from its amax by a [`Recipe`]: [`scale::of_block`]; or it is given. The functions here
//! run on rayon's current pool; results do not depend on the number of threads.

use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};
use rayon::prelude::*;

use super::band::{self, BandScales, Bands, Shape};
use super::pass::{self, Code, Dequantized, Form, Value};
use super::{Source, TASK, same_length};

/// A matrix without its elements, and its blocks. Those at the end of a row or column are cut off by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// How many columns the matrix has. Not 0.
    pub columns: usize,
    /// The rows and the columns of a block. Not 0. `[1, columns]` is a row, `[rows, 1]` a column.
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
        self.check_grid(elements, scales);
    }

    fn check_grid(self, elements: usize, scales: usize) {
        let [rows, columns] = self.grid(elements);
        same_length(("scales", scales), ("the grid", rows * columns));
    }

    /// Bands of rows that share scales.
    fn bands(self, elements: usize) -> Shape {
        let Self { columns, block: [height, width] } = self;
        let elements = height.min(elements / columns).max(1) * columns;
        Shape { elements, columns, width, blocks: columns.div_ceil(width) }
    }

    /// The elements of parts of a band for several tasks, if bands are too high to be one each.
    fn parts(self, elements: usize) -> Option<usize> {
        let band = self.bands(elements).elements;
        let is_split = band > TASK && elements.div_ceil(band) < threads();
        is_split.then_some(TASK.div_ceil(self.columns) * self.columns)
    }
}

/// Threads that may take tasks.
fn threads() -> usize {
    rayon::current_num_threads()
}

/// The largest finite magnitude of each block, a grid row by row; 0 where there is none.
///
/// # Panics
/// If `x` is no whole number of rows, or there are not as many magnitudes as blocks.
pub fn amax<S: Source>(x: &[S], blocks: Blocks, amax: &mut [f32]) {
    blocks.check_grid(x.len(), amax.len());
    let (shape, parts) = (blocks.bands(x.len()), blocks.parts(x.len()));
    let tasks = TASK.div_ceil(shape.elements);
    let [of_x, of_grid] = [tasks * shape.elements, tasks * shape.blocks];
    for_each_chunk(x, amax, [of_x, of_grid], |x, amax| match parts {
        Some(part) => amax_of_parts(x, shape, part, amax),
        None => band::amax(x, shape, amax),
    });
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
    quantize(x, blocks, format, recipe, Code, codes, scales);
}

/// The same without the codes: the numbers that they stand for, not multiplied by the scales.
///
/// # Panics
/// As [`encode`].
pub fn round<S: Source>(
    x: &[S],
    blocks: Blocks,
    format: Fp8Format,
    recipe: Recipe,
    values: &mut [f32],
    scales: &mut [f32],
) {
    quantize(x, blocks, format, recipe, Value, values, scales);
}

/// The same as [`round`], times the scales.
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
    quantize(x, blocks, format, recipe, Dequantized, values, scales);
}

/// The codes of `x` divided by the scales that its blocks are given.
///
/// # Panics
/// As [`encode`].
pub fn encode_with<S: Source>(
    x: &[S],
    blocks: Blocks,
    scales: &[f32],
    format: Fp8Format,
    overflow: Overflow,
    codes: &mut [u8],
) {
    quantize_with(x, blocks, scales, (format, overflow), Code, codes);
}

/// The numbers that the codes of [`encode_with`] stand for, not multiplied by the scales: the operands of an emulated product.
///
/// # Panics
/// As [`encode`].
pub fn round_with<S: Source>(
    x: &[S],
    blocks: Blocks,
    scales: &[f32],
    format: Fp8Format,
    overflow: Overflow,
    values: &mut [f32],
) {
    quantize_with(x, blocks, scales, (format, overflow), Value, values);
}

/// Multiplies `y`, a matrix, by the scale of each row and that of each column: the epilogue of an emulated product. As
/// [`scale::of_product`] has it.
///
/// # Panics
/// If `y` has another length than `rows` times `columns`.
pub fn scale_lines_in_place(y: &mut [f32], rows: &[f32], columns: &[f32]) {
    same_length(("y", y.len()), ("rows × columns", rows.len() * columns.len()));
    if y.is_empty() {
        return;
    }
    let task = TASK.div_ceil(columns.len());
    for_each_chunk(rows, y, [task, task * columns.len()], |rows, y| {
        pass::scale_rows_and_columns(y, rows, columns);
    });
}

/// The numbers that codes stand for, times the scales of their blocks, rounded once to f32.
///
/// # Panics
/// As [`encode`].
pub fn decode(codes: &[u8], blocks: Blocks, scales: &[f32], format: Fp8Format, values: &mut [f32]) {
    for_each_part(codes, blocks, scales, values, |codes, shape, scales, values| {
        let mut of_columns = vec![0.0; shape.columns];
        let bands = codes.chunks(shape.elements).zip(values.chunks_mut(shape.elements));
        for ((codes, values), scales) in bands.zip(scales.chunks(shape.blocks)) {
            band::spread(scales, shape.width, |scale| scale, &mut of_columns);
            super::decode(codes, 1.0, format, values);
            for row in values.chunks_exact_mut(shape.columns) {
                row.iter_mut().zip(&of_columns).for_each(|(value, scale)| *value *= scale);
            }
        }
    });
}

/// Scales of each band are found and used while it is in the cache, where bands are not too high for that.
fn quantize<S: Source, T: Send, F: Form<T> + Sync>(
    x: &[S],
    blocks: Blocks,
    format: Fp8Format,
    recipe: Recipe,
    form: F,
    y: &mut [T],
    scales: &mut [f32],
) {
    blocks.check(x.len(), y.len(), scales.len());
    let overflow = Overflow::SaturateFinite;
    if blocks.parts(x.len()).is_some() {
        amax(x, blocks, scales);
        scale::of_blocks(scales, format, recipe);
        return quantize_with(x, blocks, scales, (format, overflow), form, y);
    }
    for_each_task(x, blocks, scales, y, |x, shape, scales, y| {
        let scales = BandScales::Current(recipe, scales);
        pass::run(Bands { x, shape, scales, form, y }, format, overflow);
    });
}

fn quantize_with<S: Source, T: Send, F: Form<T> + Sync>(
    x: &[S],
    blocks: Blocks,
    scales: &[f32],
    (format, overflow): (Fp8Format, Overflow),
    form: F,
    y: &mut [T],
) {
    for_each_part(x, blocks, scales, y, |x, shape, scales, y| {
        let scales = BandScales::Given(scales);
        pass::run(Bands { x, shape, scales, form, y }, format, overflow);
    });
}

/// The amax of each block of a band, from parts of it.
fn amax_of_parts<S: Source>(x: &[S], shape: Shape, part: usize, amax: &mut [f32]) {
    let of_part = |x: &[S]| {
        let mut amax = vec![0f32; shape.blocks];
        band::amax(x, shape, &mut amax);
        amax
    };
    let union = |mut left: Vec<f32>, right: Vec<f32>| {
        left.iter_mut().zip(right).for_each(|(left, right)| *left = left.max(right));
        left
    };
    let none = || vec![0f32; shape.blocks];
    let part = part.max(x.len().div_ceil(4 * threads())).next_multiple_of(shape.columns);
    amax.copy_from_slice(&x.par_chunks(part).map(of_part).reduce(none, union));
}

/// Runs `f` for tasks of some bands of rows that share scales: their part of the matrix, of the grid and of the result.
fn for_each_task<S: Sync, T: Send>(
    x: &[S],
    blocks: Blocks,
    scales: &mut [f32],
    y: &mut [T],
    f: impl Fn(&[S], Shape, &mut [f32], &mut [T]) + Sync,
) {
    let shape = blocks.bands(x.len());
    if x.len() > TASK && threads() > 1 {
        let bands = TASK.div_ceil(shape.elements);
        let [of_x, of_grid] = [bands * shape.elements, bands * shape.blocks];
        let parts = scales.par_chunks_mut(of_grid).zip(y.par_chunks_mut(of_x));
        return x.par_chunks(of_x).zip(parts).for_each(|(x, (scales, y))| f(x, shape, scales, y));
    }
    if !x.is_empty() {
        f(x, shape, scales, y);
    }
}

/// The same with scales that are given, and for parts of a band where bands are high.
fn for_each_part<S: Sync, T: Send>(
    x: &[S],
    blocks: Blocks,
    scales: &[f32],
    y: &mut [T],
    f: impl Fn(&[S], Shape, &[f32], &mut [T]) + Sync,
) {
    blocks.check(x.len(), y.len(), scales.len());
    let part = blocks.parts(x.len());
    // A slice of its own for each task: only scales that are found are written.
    let mut grid = scales.to_vec();
    for_each_task(x, blocks, &mut grid, y, |x, shape, scales, y| match part {
        None => f(x, shape, scales, y),
        // Each band is a task of its own.
        Some(part) => for_each_chunk(x, y, [part; 2], |x, y| f(x, shape, scales, y)),
    });
}

/// Runs `f` for corresponding chunks, of these lengths, of two slices.
fn for_each_chunk<S: Sync, T: Send>(
    x: &[S],
    y: &mut [T],
    [of_x, of_y]: [usize; 2],
    f: impl Fn(&[S], &mut [T]) + Sync,
) {
    if x.len() > of_x && threads() > 1 {
        return x.par_chunks(of_x).zip(y.par_chunks_mut(of_y)).for_each(|(x, y)| f(x, y));
    }
    x.chunks(of_x).zip(y.chunks_mut(of_y)).for_each(|(x, y)| f(x, y));
}
