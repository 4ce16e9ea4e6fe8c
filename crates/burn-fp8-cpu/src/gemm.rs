//! The product of two matrices, block by block.
//!
//! A result is cut into parts, one for each task. A task goes through K block by block: it packs the numbers of its rows and of its columns
//! into panels of bf16, in its thread's scratch memory, and has the unit add the product of each pair of panels to its sums. What is added
//! to a sum, and in which order, depends on K alone: not on the number of threads, nor on how the result was cut.
#![allow(unsafe_code, reason = "vector instructions")]

use core::cell::RefCell;
use core::ops::Range;

use burn_fp8_core::scale;
use rayon::prelude::*;

use crate::epilogue::{Finish, Part, WIDTH};
use crate::kernel::{Kernel, Size};
use crate::memory::{Line, room};
use crate::packable::Packable;
use crate::product::{Product, STEP, SumScales};
use crate::share;

/// Tasks for each thread, so that one that starts late does not keep the others waiting.
const TASKS: usize = 4;

/// Runs all tasks of a product, each with a kernel of its own.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ, VL, VBMI and BF16.
pub(crate) unsafe fn run<K: Kernel, O: Packable>(
    product: &Product<'_, O>,
    finish: &Finish<'_>,
    kernel: impl Fn() -> K + Sync,
) {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    let &Product { batch, m, n, k, .. } = product;
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let threads = share::threads(work, share::ON_UNITS);
    let [rows, columns] = part_size::<K, O>(product, threads);
    let [down, across] = [m.div_ceil(rows), n.div_ceil(columns)];
    let task = |index: usize| {
        let (batch, index) = (index / (down * across), index % (down * across));
        // Down first: neighbours share columns, usually of the weight.
        let [i, j] = [index % down * rows, index / down * columns];
        let place = (batch, i..m.min(i + rows), j..n.min(j + columns));
        // SAFETY: the caller's promise.
        SCRATCH.with_borrow_mut(|scratch| unsafe {
            compute(&mut kernel(), product, place, finish, scratch);
        });
    };
    let tasks = batch * down * across;
    match threads == 1 || tasks == 1 {
        true => (0..tasks).for_each(task),
        false => (0..tasks).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// Rows and columns of a part: as large as a task can be, smaller where threads would have nothing to do.
fn part_size<K: Kernel, O: Packable>(product: &Product<'_, O>, threads: usize) -> [usize; 2] {
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

/// Memory of a thread, used again and again: panels and sums, each from the beginning of a cache line.
#[derive(Default)]
struct Scratch {
    left: Vec<Line>,
    right: Vec<Line>,
    sums: Vec<Line>,
    scales: PartScales,
}

/// Computes a part of a product: rows and columns of a matrix of the batch.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
fn compute<K: Kernel, O: Packable>(
    kernel: &mut K,
    product: &Product<'_, O>,
    (batch, rows, columns): (usize, Range<usize>, Range<usize>),
    finish: &Finish<'_>,
    Scratch { left, right, sums, scales }: &mut Scratch,
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
    let left: &mut [u16] = room(left, rows.len() * depth + K::SUMS * STEP);
    let right: &mut [u16] = room(right, across * WIDTH * depth);
    let sums: &mut [f32] = room(sums, (tiles + totals) * tile);
    let (sums, totals) = sums.split_at_mut(tiles * tile);

    let mut block = next(0);
    loop {
        let length = block.len().next_multiple_of(STEP);
        if !block.is_empty() {
            // SAFETY: the CPU has what this function is compiled for, and BF16: the caller of `run` promises it.
            unsafe {
                lhs.pack_left([rows.clone(), block.clone()], panel, left);
                rhs.pack_right([columns.clone(), block.clone()], right);
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
                        let tile = [first..first + height, j * WIDTH..(j + 1) * WIDTH];
                        scales.add(tile, sums, totals, block.start < along);
                    }
                    sums = totals;
                }
                if block.end == k {
                    let start = [rows.start + first, columns.start + j * WIDTH];
                    let width = WIDTH.min(columns.len() - j * WIDTH);
                    store(finish, Part { batch, start, size: [height, width] }, sums);
                }
            }
        }
        if block.end == k {
            return;
        }
        block = next(block.end);
    }
}

/// The epilogue, compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn store(finish: &Finish<'_>, part: Part, sums: &mut [f32]) {
    finish.run(part, sums);
}

/// The scales of a part of a result over one block of K: looked up once for all of its tiles.
#[derive(Default)]
struct PartScales {
    rows: Vec<f32>,
    /// Those of whole panels; what pads the last one is 0.
    columns: Vec<f32>,
}

impl PartScales {
    /// Looks up the scales of the block that `k` is in.
    fn look_up(
        &mut self,
        blocks: &SumScales<'_>,
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

    /// Adds sums `[rows][32]` of a tile over the block, times its scales, to totals, or overwrites these.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn add(
        &self,
        [rows, columns]: [Range<usize>; 2],
        sums: &[f32],
        totals: &mut [f32],
        overwrite: bool,
    ) {
        let columns = &self.columns[columns];
        let (sums, totals) = (sums.as_chunks::<WIDTH>().0, totals.as_chunks_mut::<WIDTH>().0);
        for ((lhs, sums), totals) in self.rows[rows].iter().zip(sums).zip(totals) {
            for ((rhs, sum), total) in columns.iter().zip(sums).zip(totals) {
                let [first, second] = scale::of_product(*lhs, *rhs);
                let before = if overwrite { 0.0 } else { *total };
                *total = before + *sum * first * second;
            }
        }
    }
}
