//! Sums over blocks of K, multiplied by the scales of the blocks and added up.

use burn_fp8_core::scale;

use crate::kernel::WIDTH;
use crate::product::Blocks;

/// The most rows that panels have.
const ROWS: usize = 32;

/// The scales of a tile of sums over one block of K: of its rows, and of its columns.
pub(crate) struct Scaled {
    rows: [f32; ROWS],
    height: usize,
    columns: [f32; WIDTH],
}

impl Scaled {
    /// Of the tile that begins at a row and a column, and the block that `k` is in.
    pub(crate) fn new(
        blocks: &Blocks<'_>,
        [row, column]: [usize; 2],
        [height, width]: [usize; 2],
        k: usize,
    ) -> Self {
        let (mut rows, mut columns) = ([0.0; ROWS], [0.0; WIDTH]);
        for (row, scale) in (row..).zip(&mut rows[..height]) {
            *scale = blocks.lhs.of(row, k);
        }
        for (column, scale) in (column..).zip(&mut columns[..width]) {
            *scale = blocks.rhs.of(k, column);
        }
        Self { rows, height, columns }
    }

    /// Adds sums `[rows][32]` times their scales to totals, or overwrites these.
    ///
    /// Inlined into functions that are compiled for a vector instruction set.
    #[inline(always)]
    pub(crate) fn add(&self, sums: &[f32], totals: &mut [f32], overwrite: bool) {
        let (sums, totals) = (sums.as_chunks::<WIDTH>().0, totals.as_chunks_mut::<WIDTH>().0);
        for ((lhs, sums), totals) in self.rows[..self.height].iter().zip(sums).zip(totals) {
            for ((rhs, sum), total) in self.columns.iter().zip(sums).zip(totals) {
                let [first, second] = scale::of_product(*lhs, *rhs);
                let before = if overwrite { 0.0 } else { *total };
                *total = before + *sum * first * second;
            }
        }
    }
}
