//! Powers of two of blocks, multiplied into panels that are packed: added to the exponents of their numbers.
//!
//! Plain loops, compiled for AVX-512.

use core::ops::Range;

use super::{COLUMNS, STEP};
use crate::blocks::Grid;

/// The bits of the exponent of a bf16 number.
const EXPONENT: u16 = 0x7F80;

/// Multiplies left panels, as [`super::left`] packs them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn left(
    grid: &Grid<'_, i16>,
    rows: Range<usize>,
    depth: Range<usize>,
    panel: usize,
    panels: &mut [u16],
) {
    let steps = depth.len().div_ceil(STEP);
    let panels = panels.chunks_mut(panel * steps * STEP);
    for (first, out) in rows.clone().step_by(panel).zip(panels) {
        let height = panel.min(rows.end - first);
        let (runs, _) = out.as_chunks_mut::<STEP>();
        for row in 0..height {
            let start = grid.row(first + row);
            // A run of each step.
            let runs = runs[..height * steps].iter_mut().skip(row).step_by(height);
            for (run, place) in runs.zip(grid.columns(depth.start, STEP)) {
                let offset = offset(grid.at(start + place));
                run.iter_mut().for_each(|x| *x = shifted(*x, offset));
            }
        }
    }
}

/// Multiplies right panels, as [`super::right`] packs them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn right(
    grid: &Grid<'_, i16>,
    columns: Range<usize>,
    depth: Range<usize>,
    panels: &mut [u16],
) {
    // Columns lie as rows in there: K is what goes across.
    let grid = grid.transpose();
    let steps = depth.len().div_ceil(STEP);
    let panels = panels.chunks_exact_mut(steps * STEP * COLUMNS);
    for (first, out) in columns.clone().step_by(COLUMNS).zip(panels) {
        // Columns that pad the panel go with the last one.
        let starts: [usize; COLUMNS] =
            core::array::from_fn(|i| grid.row((first + i).min(columns.end - 1)));
        let steps = out.as_chunks_mut::<{ STEP * COLUMNS }>().0;
        for (step, place) in steps.iter_mut().zip(grid.columns(depth.start, STEP)) {
            let mut offsets = [0; 2 * COLUMNS];
            for (pair, start) in offsets.as_chunks_mut().0.iter_mut().zip(&starts) {
                *pair = [offset(grid.at(start + place)); 2];
            }
            for pairs in step.as_chunks_mut::<{ 2 * COLUMNS }>().0 {
                pairs.iter_mut().zip(&offsets).for_each(|(x, offset)| *x = shifted(*x, *offset));
            }
        }
    }
}

/// What is added to the bits of a number to multiply it by a power of two.
#[inline(always)]
fn offset(exponent: i16) -> u16 {
    (exponent << EXPONENT.trailing_zeros()) as u16
}

/// Zeros, whose exponent bits are all 0, stay as they are, as do NaN and infinities, whose exponent bits are all 1.
#[inline(always)]
fn shifted(x: u16, offset: u16) -> u16 {
    let exponent = x & EXPONENT;
    let special = exponent == 0 || exponent == EXPONENT;
    if special { x } else { x.wrapping_add(offset) }
}
