//! Memory that is used again and again, the left operand in it, and how many threads share a product.

use core::cell::RefCell;
use core::ops::Range;

use super::kernel::{CODES, FUSED, LINES, pairs};
use crate::codes::Codes;
use crate::memory::{Line, room};
use crate::pack;
use crate::product::{Product, STEP};
use crate::share;

/// Tasks for each thread, so that one that starts late does not keep the others waiting.
const TASKS: usize = 4;

/// Bytes that are read ahead, at least.
pub(super) const AHEAD: usize = 16 << 10;

/// Threads for a product, and how many tasks they want.
pub(super) fn threads(&Product { batch, m, n, k, .. }: &Product<'_>) -> (usize, usize) {
    let work = batch.saturating_mul(n).saturating_mul(k).saturating_mul(m.div_ceil(FUSED));
    let threads = share::threads(work, share::OF_FEW_ROWS);
    (threads, if threads == 1 { 1 } else { TASKS * threads })
}

/// Memory of a task.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) left: Left,
    pub(super) sums: Vec<Line>,
    pub(super) tile: Vec<Line>,
    /// Scales of blocks: `[blocks][rows]`.
    pub(super) of_rows: Vec<f32>,
    /// Those of rows times those of neighbouring lines: `[blocks][rows]`.
    pub(super) factors: Vec<[f32; LINES]>,
}

/// Runs a task with the memory of this thread.
pub(super) fn with<R>(task: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(task)
}

/// Runs a product with the sums of this thread. A product that this thread runs meanwhile, waiting for others, gets new ones.
pub(super) fn with_sums<R>(count: usize, product: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SUMS: RefCell<Vec<Line>> = RefCell::default();
    }
    let mut lines = SUMS.take();
    let result = product(room(&mut lines, count));
    SUMS.set(lines);
    result
}

/// Rows of the left operand, decoded.
#[derive(Default)]
pub(super) struct Left {
    panel: Vec<Line>,
    units: Vec<Line>,
}

impl Left {
    /// All rows, in the order in which units of `rows` or `columns` take them: `[units][rows][2 steps][pairs]`, zeros beyond `depth`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn decode<const COLUMNS: bool>(
        &mut self,
        matrix: &Codes<'_>,
        depth: Range<usize>,
    ) -> &[i32] {
        let rows = matrix.shape[0];
        let steps = depth.len().div_ceil(STEP);
        let panel = room(&mut self.panel, steps * rows * STEP);
        pack::left(matrix, 0..rows, depth.clone(), rows, panel);
        let panel: &[i32] = bytemuck::cast_slice(panel);
        let units = depth.len().div_ceil(if COLUMNS { CODES } else { LINES });
        let out = room(&mut self.units, units * rows * 2 * pairs(COLUMNS));
        let units = out.chunks_exact_mut(rows * 2 * pairs(COLUMNS)).enumerate();
        match COLUMNS {
            true => units.for_each(|(unit, out)| permute(panel, unit, rows, out)),
            false => units.for_each(|(unit, out)| regroup(panel, unit, rows, out)),
        }
        out
    }
}

/// Pairs of a step of the panel.
const PAIRS: usize = STEP / 2;

/// Two pairs of each row.
fn regroup(panel: &[i32], unit: usize, rows: usize, out: &mut [i32]) {
    let (step, pair) = (2 * unit / PAIRS, 2 * unit % PAIRS);
    for (row, out) in out.chunks_exact_mut(2).enumerate() {
        out.copy_from_slice(&panel[(step * rows + row) * PAIRS + pair..][..2]);
    }
}

/// 64 elements of each row, in the order in which codes are decoded: elements 0 to 7 of each 16, then 8 to 15.
fn permute(panel: &[i32], unit: usize, rows: usize, out: &mut [i32]) {
    for (row, out) in out.chunks_exact_mut(2 * PAIRS).enumerate() {
        let (first, second) = out.split_at_mut(PAIRS);
        for half in 0..2 {
            let place = half * PAIRS / 2;
            let (first, second) =
                (&mut first[place..][..PAIRS / 2], &mut second[place..][..PAIRS / 2]);
            match panel.get(((2 * unit + half) * rows + row) * PAIRS..) {
                Some(step) if !step.is_empty() => {
                    let (a, b, c, d) = (&step[..4], &step[4..8], &step[8..12], &step[12..16]);
                    first[..4].copy_from_slice(a);
                    first[4..].copy_from_slice(c);
                    second[..4].copy_from_slice(b);
                    second[4..].copy_from_slice(d);
                }
                _ => {
                    first.fill(0);
                    second.fill(0);
                }
            }
        }
    }
}
