//! What units do with panels: multiply them, and hand the sums to the epilogue.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod simulated;
pub(crate) mod tiles;

use core::ops::Range;

use crate::codes::Codes;
pub(crate) use crate::epilogue::WIDTH;
use crate::epilogue::{Finish, Part};
use crate::pack::shift;
use crate::powers::Grid;
use crate::scaled::Scaled;

/// A unit at work on one thread.
pub(crate) trait Kernel {
    /// K of a block: what is summed before sums are put aside.
    const DEPTH: usize;
    /// Rows and columns of a result that one task computes, at most.
    const TASK: [usize; 2];
    /// Rows of sums that panels are given, whatever their own.
    const SUMS: usize;

    /// Rows of the left panels for a task of this many rows; the last one may have fewer.
    fn panel(rows: usize) -> usize;

    /// Packs left panels, as [`pack::left`](crate::pack::left). `panels` has room for a panel more.
    fn pack_left(
        &mut self,
        matrix: &Codes<'_>,
        rows: Range<usize>,
        depth: Range<usize>,
        panel: usize,
        panels: &mut [u16],
    );

    /// Packs right panels, as [`pack::right`](crate::pack::right).
    fn pack_right(
        &mut self,
        matrix: &Codes<'_>,
        columns: Range<usize>,
        depth: Range<usize>,
        panels: &mut [u16],
    );

    /// Multiplies packed left panels by the powers of their blocks.
    fn shift_left(
        &mut self,
        powers: &Grid<'_>,
        rows: Range<usize>,
        depth: Range<usize>,
        panel: usize,
        panels: &mut [u16],
    ) {
        shift::left(powers, rows, depth, panel, panels);
    }

    /// Multiplies packed right panels by the powers of their blocks.
    fn shift_right(
        &mut self,
        powers: &Grid<'_>,
        columns: Range<usize>,
        depth: Range<usize>,
        panels: &mut [u16],
    ) {
        shift::right(powers, columns, depth, panels);
    }

    /// Adds the product of two panels to `sums` `[rows][32]`, or overwrites them with it.
    ///
    /// `left` begins with a panel of `rows`, `right` with one of as many steps.
    fn multiply(
        &mut self,
        left: &[u16],
        right: &[u16],
        size: Size,
        sums: &mut [f32],
        accumulate: bool,
    );

    /// Adds sums `[rows][32]` over a block of K, times the scales of the block, to totals, or overwrites these.
    fn add_scaled(
        &mut self,
        scales: Scaled<'_>,
        sums: &[f32],
        totals: &mut [f32],
        overwrite: bool,
    ) {
        scales.add(sums, totals, overwrite);
    }

    /// Applies the epilogue to sums `[rows][32]` and stores the result.
    fn finish(&mut self, finish: &Finish<'_>, part: Part, sums: &mut [f32]);
}

/// The size of two panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Rows of the left one.
    pub(crate) rows: usize,
    /// K / 32.
    pub(crate) steps: usize,
}
