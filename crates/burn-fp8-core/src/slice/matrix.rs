//! Matrices, row by row in memory, with a scale for each row or each column.
//!
//! What the functions of [`slice`](super) do with one scale for all elements. With the feature `rayon` they run on rayon's current pool;
//! results do not depend on the number of threads.

use super::pass::{self, Code, Value};
use super::{Source, same_length};
use crate::{Fp8Format, Overflow};

/// Elements per task: as in [`parallel`](super::parallel).
const TASK: usize = 1 << 16;

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
    /// How many scales there are for a matrix of this many elements.
    ///
    /// # Panics
    /// If they are not a whole number of rows.
    fn scales(self, elements: usize) -> usize {
        let Self { columns, axis } = self;
        assert!(
            columns > 0 && elements.is_multiple_of(columns),
            "{elements} elements are no whole rows of {columns}"
        );
        match axis {
            Axis::Rows => elements / columns,
            Axis::Columns => columns,
        }
    }

    /// Elements of as many whole rows as a task takes.
    fn task(self) -> usize {
        TASK.div_ceil(self.columns) * self.columns
    }

    /// The scales of the rows that begin at this element.
    fn part(self, scales: &[f32], first: usize, elements: usize) -> &[f32] {
        match self.axis {
            Axis::Rows => &scales[first / self.columns..][..elements / self.columns],
            Axis::Columns => scales,
        }
    }
}

/// The largest finite magnitude of each row or column; 0 where there is none.
///
/// # Panics
/// If `x` is no whole number of rows, or `amax` has another length than there are rows or columns.
pub fn amax<S: Source>(x: &[S], matrix: Scaled, amax: &mut [f32]) {
    same_length(("amax", amax.len()), ("the scales", matrix.scales(x.len())));
    let columns = matrix.columns;
    match matrix.axis {
        Axis::Rows => {
            for_each_chunk(x, amax, [matrix.task(), matrix.task() / columns], |x, amax| {
                for (row, amax) in x.chunks_exact(columns).zip(amax) {
                    *amax = super::amax(row).value;
                }
            })
        }
        Axis::Columns => column_amax(x, matrix, amax),
    }
}

#[cfg(feature = "rayon")]
fn column_amax<S: Source>(x: &[S], matrix: Scaled, amax: &mut [f32]) {
    use rayon::prelude::*;

    let task = matrix.task().max(x.len().div_ceil(4 * rayon::current_num_threads()));
    let task = task.next_multiple_of(matrix.columns);
    let largest = x
        .par_chunks(task)
        .map(|x| {
            let mut amax = vec![0.0; matrix.columns];
            pass::amax_columns(x, &mut amax);
            amax
        })
        .reduce(
            || vec![0.0; matrix.columns],
            |mut left, right| {
                left.iter_mut().zip(right).for_each(|(left, right)| *left = left.max(right));
                left
            },
        );
    amax.copy_from_slice(&largest);
}

#[cfg(not(feature = "rayon"))]
fn column_amax<S: Source>(x: &[S], _: Scaled, amax: &mut [f32]) {
    amax.fill(0.0);
    pass::amax_columns(x, amax);
}

/// The codes of `x` divided by its scales.
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
    quantize(x, matrix, scales, codes, |x, scales, codes| match scales {
        Scales::One(scale) => super::encode(x, scale, format, overflow, codes),
        Scales::Each(scales) => {
            pass::run(pass::QuantizeEach { x, scales, y: codes, form: Code }, format, overflow);
        }
    });
}

/// The numbers that the codes of `x` divided by its scales stand for, not multiplied by them.
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
    quantize(x, matrix, scales, values, |x, scales, values| match scales {
        Scales::One(scale) => super::round(x, scale, format, overflow, values),
        Scales::Each(scales) => {
            pass::run(pass::QuantizeEach { x, scales, y: values, form: Value }, format, overflow);
        }
    });
}

/// The scales of a row.
enum Scales<'a> {
    One(f32),
    Each(&'a [f32]),
}

fn quantize<S: Source, T: Send>(
    x: &[S],
    matrix: Scaled,
    scales: &[f32],
    y: &mut [T],
    row: impl Fn(&[S], Scales<'_>, &mut [T]) + Sync,
) {
    same_length(("x", x.len()), ("the result", y.len()));
    same_length(("scales", scales.len()), ("the scales", matrix.scales(x.len())));
    let Scaled { columns, axis } = matrix;
    for_each_part(x, y, matrix.task(), |first, x, y| {
        let scales = matrix.part(scales, first, x.len());
        for (index, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate()
        {
            match axis {
                Axis::Rows => row(x, Scales::One(scales[index]), y),
                Axis::Columns => row(x, Scales::Each(scales), y),
            }
        }
    });
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
    let matrix = Scaled { columns: columns.len(), axis: Axis::Rows };
    let task = matrix.task();
    for_each_chunk(rows, y, [task / columns.len(), task], |rows, y| {
        for (row, y) in rows.iter().zip(y.chunks_exact_mut(columns.len())) {
            pass::scale_columns(y, *row, columns);
        }
    });
}

/// Runs `f` for parts of two slices of the same length, with the index of their first elements.
fn for_each_part<S: Sync, T: Send>(
    x: &[S],
    y: &mut [T],
    task: usize,
    f: impl Fn(usize, &[S], &mut [T]) + Sync,
) {
    #[cfg(feature = "rayon")]
    if x.len() > task && rayon::current_num_threads() > 1 {
        use rayon::prelude::*;
        let parts = x.par_chunks(task).zip(y.par_chunks_mut(task)).enumerate();
        return parts.for_each(|(index, (x, y))| f(index * task, x, y));
    }
    let _ = task;
    f(0, x, y);
}

/// Runs `f` for corresponding parts, of these lengths, of two slices.
fn for_each_chunk<S: Sync, T: Send>(
    x: &[S],
    y: &mut [T],
    [of_x, of_y]: [usize; 2],
    f: impl Fn(&[S], &mut [T]) + Sync,
) {
    #[cfg(feature = "rayon")]
    if x.len() > of_x && rayon::current_num_threads() > 1 {
        use rayon::prelude::*;
        return x.par_chunks(of_x).zip(y.par_chunks_mut(of_y)).for_each(|(x, y)| f(x, y));
    }
    let _ = (of_x, of_y);
    f(x, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale;

    /// Values of all magnitudes, with zeros, subnormals, infinities and NaN.
    fn values(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut bits = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            state
        };
        (0..count)
            .map(|index| match index % 97 {
                5 => 0.0,
                6 => f32::NAN,
                7 => f32::NEG_INFINITY,
                8 => f32::from_bits(3),
                _ => f32::from_bits((bits() & 0x807f_ffff) | ((100 + bits() % 60) << 23)),
            })
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }

    /// Element by element through the functions for one scale, which have tests of their own.
    #[test]
    fn each_row_or_column_is_quantized_with_its_scale() {
        for [rows, columns] in [[1, 1], [1, 37], [37, 1], [7, 13], [300, 517]] {
            let x = values(rows * columns);
            for axis in [Axis::Rows, Axis::Columns] {
                let matrix = Scaled { columns, axis };
                let line = |index: usize| match axis {
                    Axis::Rows => index / columns,
                    Axis::Columns => index % columns,
                };
                let lines = if axis == Axis::Rows { rows } else { columns };
                let mut amaxes = vec![f32::NAN; lines];
                amax(&x, matrix, &mut amaxes);
                for (index, measured) in amaxes.iter().enumerate() {
                    let of_line =
                        x.iter().enumerate().filter(|(i, x)| line(*i) == index && x.is_finite());
                    let expected = of_line.fold(0f32, |amax, (_, x)| amax.max(x.abs()));
                    assert_eq!(*measured, expected, "{rows}×{columns} {axis:?}");
                }
                let scales: Vec<f32> = amaxes.iter().map(|amax| amax / 448.0 + 1e-30).collect();
                for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
                    let overflow = Overflow::SaturateFinite;
                    let mut codes = vec![0xAA; x.len()];
                    encode(&x, matrix, &scales, format, overflow, &mut codes);
                    let mut rounded = vec![0.5; x.len()];
                    round(&x, matrix, &scales, format, overflow, &mut rounded);
                    let expected: Vec<u8> = (0..x.len())
                        .map(|index| format.encode(x[index] / scales[line(index)], overflow))
                        .collect();
                    assert_eq!(codes, expected, "{rows}×{columns} {axis:?} {format}");
                    let expected: Vec<f32> =
                        expected.iter().map(|code| format.decode(*code)).collect();
                    assert_eq!(
                        bits(&rounded),
                        bits(&expected),
                        "{rows}×{columns} {axis:?} {format}"
                    );
                }
            }
        }
    }

    #[test]
    fn results_are_multiplied_by_the_scales_of_row_and_column() {
        let rows = [2.0, 1e30, 1e-30, 0.5];
        let columns = [3.0, 1e20, 1e-20];
        let mut y = [1e-5f32; 12];
        scale_in_place(&mut y, &rows, &columns);
        for (index, y) in y.iter().enumerate() {
            let [first, second] = scale::of_product(rows[index / 3], columns[index % 3]);
            assert_eq!(y.to_bits(), (1e-5 * first * second).to_bits(), "[{index}]");
        }
        scale_in_place(&mut [], &[], &columns);
        scale_in_place(&mut [], &rows, &[]);
    }

    #[test]
    #[should_panic(expected = "7 elements are no whole rows of 3")]
    fn rows_must_be_whole() {
        amax(&[0f32; 7], Scaled { columns: 3, axis: Axis::Rows }, &mut [0.0; 2]);
    }
}
