//! What multiplies panels: AVX-512 BF16, and AMX.

pub(crate) mod amx;
pub(crate) mod avx512;
#[cfg(test)]
pub(crate) mod software;
pub(crate) mod tiles;

/// A unit at work on one thread.
pub(crate) trait Kernel {
    /// K of a block: what is summed before sums are put aside.
    const DEPTH: usize;
    /// Rows and columns of a result that one task computes, at most.
    const TASK: [usize; 2];
    /// Rows of sums that panels are given, whatever their own. As many are read of a left panel: there must be room after the last one.
    const SUMS: usize;

    /// Rows of the left panels for a task of this many rows; the last one may have fewer.
    fn panel(rows: usize) -> usize;

    /// Adds the product of two panels, as [`pack`](crate::pack) lays them out, to `sums` `[rows][32]`, or overwrites them with it.
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
}

/// The size of two panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Rows of the left one.
    pub(crate) rows: usize,
    /// K / 32.
    pub(crate) steps: usize,
}
