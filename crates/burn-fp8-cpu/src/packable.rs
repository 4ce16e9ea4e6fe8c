//! What a matrix must do to be multiplied: that of codes, and that of numbers.
#![allow(unsafe_code, reason = "packing takes vector instructions")]

#[cfg(target_arch = "x86_64")]
use core::ops::Range;

use rayon::prelude::*;

use crate::blocks::{Factors, Grid};
use crate::codes::Codes;
use crate::numbers::Numbers;
#[cfg(target_arch = "x86_64")]
use crate::pack::{self, shift};
use crate::{share, slice};

/// A matrix that can be multiplied, or a batch of them.
pub(crate) trait Packable: Copy + Sync {
    /// One matrix of the batch.
    fn matrix(&self, index: usize) -> Self;

    /// Its numbers, and the strides from row to row and from column to column.
    fn decode(&self) -> (Vec<f32>, [isize; 2]);

    /// Packs rows, of a part of K, into left panels of `panel` rows, as [`pack`](crate::pack) lays them out. What follows the last one may be overwritten.
    ///
    /// # Safety
    /// The CPU must have the instructions of [`Unit::Avx512Bf16`](crate::Unit).
    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_left(&self, part: [Range<usize>; 2], panel: usize, panels: &mut [u16]);

    /// Packs columns, of a part of K, into right panels.
    ///
    /// # Safety
    /// The CPU must have the instructions of [`Unit::Avx512Bf16`](crate::Unit).
    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_right(&self, part: [Range<usize>; 2], panels: &mut [u16]);
}

impl Packable for Codes<'_> {
    fn matrix(&self, index: usize) -> Self {
        self.matrix(index)
    }

    fn decode(&self) -> (Vec<f32>, [isize; 2]) {
        decode(self)
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_left(&self, part: [Range<usize>; 2], panel: usize, panels: &mut [u16]) {
        let [rows, depth] = part;
        // SAFETY: the caller's promise.
        unsafe { pack::left(self, rows.clone(), depth.clone(), panel, panels) };
        if let Factors::Powers(powers) = &self.factors {
            // SAFETY: the caller's promise.
            unsafe { shift::left(powers, rows, depth, panel, panels) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_right(&self, part: [Range<usize>; 2], panels: &mut [u16]) {
        let [columns, depth] = part;
        // SAFETY: the caller's promise.
        unsafe { pack::right(self, columns.clone(), depth.clone(), panels) };
        if let Factors::Powers(powers) = &self.factors {
            // SAFETY: the caller's promise.
            unsafe { shift::right(powers, columns, depth, panels) };
        }
    }
}

impl Packable for Numbers<'_> {
    fn matrix(&self, _: usize) -> Self {
        *self
    }

    fn decode(&self) -> (Vec<f32>, [isize; 2]) {
        self.decode()
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_left(&self, part: [Range<usize>; 2], panel: usize, panels: &mut [u16]) {
        // SAFETY: the caller's promise.
        unsafe { self.pack_left(part, panel, panels) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_right(&self, part: [Range<usize>; 2], panels: &mut [u16]) {
        // SAFETY: the caller's promise.
        unsafe { self.pack_right(part, panels) };
    }
}

/// The numbers of a matrix, and the strides from row to row and from column to column.
fn decode(matrix: &Codes<'_>) -> (Vec<f32>, [isize; 2]) {
    let [rows, columns] = matrix.shape;
    let [lines, elements] = if matrix.transposed { [columns, rows] } else { [rows, columns] };
    let mut values = vec![0f32; lines * elements];
    if matrix.line_stride == elements {
        slice::decode(&matrix.codes[..lines * elements], 1.0, matrix.format, &mut values);
    } else if elements > 0 {
        for (line, values) in values.chunks_mut(elements).enumerate() {
            let codes = &matrix.codes[line * matrix.line_stride..][..elements];
            slice::decode(codes, 1.0, matrix.format, values);
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
    match values.len() < share::IN_F32 {
        true => values.chunks_mut(lines).enumerate().for_each(line),
        false => values.par_chunks_mut(lines).enumerate().for_each(line),
    }
}
