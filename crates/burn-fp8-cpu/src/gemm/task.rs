//! Parts of a result, and the blocks that each is computed from.

use core::ops::Range;

use rayon::prelude::*;

use super::scratch;
use crate::epilogue::{Finish, Part};
use crate::kernel::{Kernel, Size, WIDTH};
use crate::pack::STEP;
use crate::product::Product;
use crate::scaled::PartScales;

/// Multiplications that are worth waking other threads for.
const WORTHWHILE: usize = 1 << 21;

/// Tasks for each thread, so that one that starts late does not keep the others waiting.
const TASKS: usize = 4;

/// Runs all tasks of a product, each with a kernel of its own.
pub(crate) fn run<K: Kernel>(
    product: &Product<'_>,
    finish: &Finish<'_>,
    kernel: impl Fn() -> K + Sync,
) {
    let &Product { batch, m, n, k, .. } = product;
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let threads = if work < WORTHWHILE { 1 } else { rayon::current_num_threads() };
    let [rows, columns] = part_size::<K>(product, threads);
    let [down, across] = [m.div_ceil(rows), n.div_ceil(columns)];
    let task = |index: usize| {
        let (batch, index) = (index / (down * across), index % (down * across));
        // Down first: neighbours share columns, usually of the weight.
        let [i, j] = [index % down * rows, index / down * columns];
        let (rows, columns) = (i..m.min(i + rows), j..n.min(j + columns));
        scratch::with(|scratch| {
            compute(&mut kernel(), product, batch, rows, columns, finish, scratch)
        });
    };
    let tasks = batch * down * across;
    match threads == 1 || tasks == 1 {
        true => (0..tasks).for_each(task),
        false => (0..tasks).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// Rows and columns of a part: as large as a task can be, smaller where threads would have nothing to do.
fn part_size<K: Kernel>(product: &Product<'_>, threads: usize) -> [usize; 2] {
    let &Product { batch, m, n, .. } = product;
    let [mut rows, mut columns] = [K::TASK[0].min(m), K::TASK[1].min(n)];
    let wanted = if threads == 1 { 1 } else { (TASKS * threads).div_ceil(batch) };
    let panel = K::panel(m);
    while m.div_ceil(rows) * n.div_ceil(columns) < wanted {
        // Across first, where operands are usually wider, down to two panels.
        if columns > 2 * WIDTH && (columns >= rows || rows <= 2 * panel) {
            columns = (columns / 2).next_multiple_of(WIDTH);
        } else if rows > 2 * panel {
            rows = (rows / 2).next_multiple_of(panel);
        } else {
            break;
        }
    }
    [rows, columns]
}

/// Computes a part of a product.
fn compute<K: Kernel>(
    kernel: &mut K,
    product: &Product<'_>,
    batch: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    finish: &Finish<'_>,
    scratch: &mut scratch::Scratch,
) {
    let (lhs, rhs) = (product.lhs.matrix(batch), product.rhs.matrix(batch));
    let k = product.k;
    let panel = K::panel(rows.len());
    let [down, across] = [rows.len().div_ceil(panel), columns.len().div_ceil(WIDTH)];
    let depth = K::DEPTH.min(k.next_multiple_of(STEP));
    // Of blocks with scales, each is summed by itself.
    let along = product.blocks.map_or(usize::MAX, |blocks| blocks.along);
    let next =
        |start: usize| start..k.min(start + depth).min(start.saturating_add(along - start % along));
    // Sums of a pair of panels; of all of them, where K has several blocks. Then as many sums of those of blocks with scales.
    let tile = K::SUMS * WIDTH;
    let one_block = next(0).end == k;
    let tiles = if one_block { 1 } else { down * across };
    let totals = if product.blocks.is_some() { tiles } else { 0 };
    let (left, right, sums) = scratch.parts([
        rows.len() * depth + K::SUMS * STEP,
        across * WIDTH * depth,
        (tiles + totals) * tile,
    ]);
    let (sums, totals) = sums.split_at_mut(tiles * tile);

    let mut scales = PartScales::default();
    let mut block = next(0);
    loop {
        let length = block.len().next_multiple_of(STEP);
        if !block.is_empty() {
            kernel.pack_left(&lhs, rows.clone(), block.clone(), panel, left);
            if let Some(powers) = &lhs.powers {
                kernel.shift_left(powers, rows.clone(), block.clone(), panel, left);
            }
            kernel.pack_right(&rhs, columns.clone(), block.clone(), right);
            if let Some(powers) = &rhs.powers {
                kernel.shift_right(powers, columns.clone(), block.clone(), right);
            }
        }
        // Whether a block with scales has been summed.
        let is_summed = block.end == k || block.end.is_multiple_of(along);
        if let Some(blocks) = product.blocks.as_ref().filter(|_| is_summed) {
            scales.look_up(blocks, rows.clone(), columns.clone(), block.start);
        }
        for i in 0..down {
            for j in 0..across {
                let first = i * panel;
                let height = panel.min(rows.len() - first);
                let index = if one_block { 0 } else { j * down + i };
                let mut sums = &mut sums[index * tile..][..tile];
                let size = Size { rows: height, steps: length / STEP };
                kernel.multiply(
                    &left[first * length..],
                    &right[j * WIDTH * length..],
                    size,
                    sums,
                    !block.start.is_multiple_of(along),
                );
                if product.blocks.is_some() {
                    let totals = &mut totals[index * tile..][..tile];
                    if is_summed {
                        let scales = scales.tile(first..first + height, j * WIDTH);
                        kernel.add_scaled(scales, sums, totals, block.start < along);
                    }
                    sums = totals;
                }
                if block.end == k {
                    let start = [rows.start + first, columns.start + j * WIDTH];
                    let width = WIDTH.min(columns.len() - j * WIDTH);
                    let part = Part { batch, start, size: [height, width] };
                    kernel.finish(finish, part, sums);
                }
            }
        }
        if block.end == k {
            return;
        }
        block = next(block.end);
    }
}
