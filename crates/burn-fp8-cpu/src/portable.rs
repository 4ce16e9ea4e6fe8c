//! Products in f32, on any CPU: both operands decoded, multiplied with the crate `gemm`.
#![allow(unsafe_code, reason = "the crate gemm takes pointers")]

use burn_fp8_core::slice::parallel;
use rayon::prelude::*;

use crate::blocks::{Factors, Grid};
use crate::codes::Codes;
use crate::epilogue::{Finish, Part, WIDTH};
use crate::product::{Operand, Product};

/// Multiplications that are worth waking other threads for.
const WORTHWHILE: usize = 1 << 18;

pub(crate) fn run<O: Operand>(product: &Product<'_, O>, finish: &Finish<'_>) {
    let &Product { batch, m, n, k, .. } = product;
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let threads = match m.saturating_mul(n).saturating_mul(k) < WORTHWHILE {
        true => 1,
        false => rayon::current_num_threads(),
    };
    let parallelism = match threads {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let mut sums = vec![0f32; m * n];
    for index in 0..batch {
        let [lhs, rhs] = [&product.lhs, &product.rhs].map(|of| of.matrix(index).decode());
        let ((lhs, [lhs_row, lhs_column]), (rhs, [rhs_row, rhs_column])) = (&lhs, &rhs);
        // SAFETY: `decode` gives as many numbers as the shapes have, with these strides; `sums` holds m × n.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                sums.as_mut_ptr(),
                1,
                n as isize,
                false,
                lhs.as_ptr(),
                *lhs_column,
                *lhs_row,
                rhs.as_ptr(),
                *rhs_column,
                *rhs_row,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
        let row = |(row, sums): (usize, &[f32])| {
            for (chunk, sums) in sums.chunks(WIDTH).enumerate() {
                let mut padded = [0f32; WIDTH];
                padded[..sums.len()].copy_from_slice(sums);
                let start = [row, chunk * WIDTH];
                finish.run(Part { batch: index, start, size: [1, sums.len()] }, &mut padded);
            }
        };
        match threads {
            1 => sums.chunks(n).enumerate().for_each(row),
            _ => sums.par_chunks(n).enumerate().for_each(row),
        }
    }
}

/// The numbers of a matrix, and the strides from row to row and from column to column.
pub(crate) fn decode(matrix: &Codes<'_>) -> (Vec<f32>, [isize; 2]) {
    let [rows, columns] = matrix.shape;
    let [lines, elements] = if matrix.transposed { [columns, rows] } else { [rows, columns] };
    let mut values = vec![0f32; lines * elements];
    if matrix.line_stride == elements {
        parallel::decode(&matrix.codes[..lines * elements], 1.0, matrix.format, &mut values);
    } else if elements > 0 {
        for (line, values) in values.chunks_mut(elements).enumerate() {
            let codes = &matrix.codes[line * matrix.line_stride..][..elements];
            parallel::decode(codes, 1.0, matrix.format, values);
        }
    }
    match if matrix.transposed { matrix.factors.transpose() } else { matrix.factors } {
        Factors::Ones => {}
        // From 2^-117 on: a normal number.
        Factors::Powers(powers) => multiply(&mut values, elements, &powers, |exponent| {
            f32::from_bits(((127 + exponent) as u32) << 23)
        }),
        Factors::Scales(scales) => multiply(&mut values, elements, &scales, |scale| scale),
    }
    let elements = elements as isize;
    (values, if matrix.transposed { [1, elements] } else { [elements, 1] })
}

/// Multiplies numbers, in lines of `elements`, by what their blocks have.
fn multiply<T: Copy + Sync>(
    values: &mut [f32],
    elements: usize,
    grid: &Grid<'_, T>,
    factor: impl Fn(T) -> f32 + Sync,
) {
    let width = grid.block()[1];
    let line = |(line, values): (usize, &mut [f32])| {
        let start = grid.row(line);
        for (values, place) in values.chunks_mut(width).zip(grid.columns(0, width)) {
            let factor = factor(grid.at(start + place));
            values.iter_mut().for_each(|x| *x *= factor);
        }
    };
    let lines = elements.max(1);
    match values.len() < WORTHWHILE {
        true => values.chunks_mut(lines).enumerate().for_each(line),
        false => values.par_chunks_mut(lines).enumerate().for_each(line),
    }
}
