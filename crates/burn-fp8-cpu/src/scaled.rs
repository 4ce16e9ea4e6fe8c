//! Sums over blocks of K, multiplied by the scales of the blocks and added up.

use core::ops::Range;

use burn_fp8_core::scale;

use crate::kernel::WIDTH;
use crate::product::Blocks;

/// The scales of a part of a result over one block of K: looked up once for all of its tiles.
#[derive(Default)]
pub(crate) struct PartScales {
    rows: Vec<f32>,
    /// Those of whole panels; what pads the last one is 0.
    columns: Vec<f32>,
}

/// The scales of a tile of sums over one block of K: of its rows, and of its columns.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a> {
    rows: &'a [f32],
    columns: &'a [f32],
}

impl PartScales {
    /// Looks up the scales of the block that `k` is in.
    pub(crate) fn look_up(
        &mut self,
        blocks: &Blocks<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        k: usize,
    ) {
        self.rows.clear();
        self.rows.extend(rows.map(|row| blocks.lhs.of(row, k)));
        let padded = columns.len().next_multiple_of(WIDTH);
        self.columns.clear();
        self.columns.extend(columns.map(|column| blocks.rhs.of(k, column)));
        self.columns.resize(padded, 0.0);
    }

    /// Those of a tile, by its rows and its first column within the part.
    pub(crate) fn tile(&self, rows: Range<usize>, column: usize) -> Scaled<'_> {
        Scaled { rows: &self.rows[rows], columns: &self.columns[column..][..WIDTH] }
    }
}

impl Scaled<'_> {
    /// Adds sums `[rows][32]` times their scales to totals, or overwrites these.
    ///
    /// Inlined into functions that are compiled for a vector instruction set.
    #[inline(always)]
    pub(crate) fn add(self, sums: &[f32], totals: &mut [f32], overwrite: bool) {
        let (sums, totals) = (sums.as_chunks::<WIDTH>().0, totals.as_chunks_mut::<WIDTH>().0);
        for ((lhs, sums), totals) in self.rows.iter().zip(sums).zip(totals) {
            for ((rhs, sum), total) in self.columns.iter().zip(sums).zip(totals) {
                let [first, second] = scale::of_product(*lhs, *rhs);
                let before = if overwrite { 0.0 } else { *total };
                *total = before + *sum * first * second;
            }
        }
    }
}
