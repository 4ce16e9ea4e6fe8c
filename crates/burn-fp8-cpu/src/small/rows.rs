//! The right operand row by row.
//!
//! K is cut into blocks, and a block into strips of columns. A task goes through its strip some rows at a time, from left to right: a
//! narrow strip would be read in short pieces far from each other, which is slow. Sums of a strip stay in the second-level cache. In the
//! end, the sums of all blocks are added, in their order.
#![allow(unsafe_code, reason = "vector instructions")]

use core::ops::Range;

use rayon::prelude::*;

use super::kernel::{CODES, Context, DECODED, FUSED, LINES, SUMS, Units, add};
use super::memory::{self, AHEAD, Scratch, threads};
use crate::codes::Codes;
use crate::epilogue::{Finish, Part, WIDTH};
use crate::memory::{Line, room};
use crate::pack::Decoder;
use crate::product::Product;

/// K of a block, where sums are few: of up to [`FUSED`] rows, and of more. Few rows take as long as it takes to read whole lines of the right operand: blocks
/// that are low make tasks enough without cutting lines. The sums of more rows take longer to load and to store.
const DEPTHS: [usize; 2] = [128, 512];

/// Sums of all blocks of all products of a batch, about.
const TOTAL: usize = 1 << 20;

/// Sums of a strip, at most: 256 KiB.
const STRIP: usize = 1 << 16;

/// Columns from which on a tile more, so that tiles begin with a cache line, is worth it.
const ALIGNED: usize = 8 * CODES;

/// How a product is cut.
struct Cut {
    n: usize,
    /// Columns that the first tile has less than 64.
    missing: usize,
    /// Tiles of 64 columns.
    tiles: usize,
    /// Tiles of a strip, and strips.
    width: usize,
    strips: usize,
    /// K of a block, and blocks.
    depth: usize,
    blocks: usize,
}

impl Cut {
    /// Blocks depend on the shape alone: the order of sums must not depend on the number of threads. Strips may.
    fn new(&Product { batch, m, n, k, ref rhs, .. }: &Product<'_>, tasks: usize) -> Self {
        let missing = if n < ALIGNED { 0 } else { beyond_line(rhs) };
        let tiles = (missing + n).div_ceil(CODES);
        let sums = m.saturating_mul(n.next_multiple_of(CODES)).saturating_mul(batch);
        let depth = DEPTHS[usize::from(m > FUSED)];
        let blocks = (TOTAL / sums).clamp(1, k.div_ceil(depth).max(1));
        let depth = k.div_ceil(blocks).next_multiple_of(DECODED * LINES).max(1);
        let blocks = k.div_ceil(depth).max(1);
        let wanted = tiles.div_ceil(tasks.div_ceil(batch * blocks));
        let width = wanted.min((STRIP / (m * SUMS)).max(1));
        Self { n, missing, tiles, width, strips: tiles.div_ceil(width), depth, blocks }
    }

    /// The columns of a tile.
    fn tile(&self, index: usize) -> Range<usize> {
        let column = |x: usize| x.clamp(self.missing, self.missing + self.n) - self.missing;
        column(index * CODES)..column((index + 1) * CODES)
    }
}

/// How far from the beginning of a cache line all rows of the first matrix begin; 0 if not all at the same place.
fn beyond_line(rhs: &Codes<'_>) -> usize {
    let same = rhs.line_stride.is_multiple_of(CODES);
    if same { rhs.matrix(0).codes.as_ptr().addr() % CODES } else { 0 }
}

/// # Safety
/// The CPU must have the instructions of [`Unit::Avx512Bf16`](crate::Unit).
pub(super) unsafe fn run(product: &Product<'_>, finish: &Finish<'_>) {
    let &Product { batch, m, .. } = product;
    let (threads, tasks) = threads(product);
    let cut = Cut::new(product, tasks);
    let strip = cut.width * m * SUMS;
    memory::with_sums(batch * cut.strips * cut.blocks * strip, |sums| {
        // Neighbours are strips of the same rows.
        let task = |(index, sums): (usize, &mut [f32])| {
            let [matrix, block, first] = [
                index / cut.strips / cut.blocks,
                index / cut.strips % cut.blocks,
                index % cut.strips,
            ];
            let rows = block * cut.depth..product.k.min((block + 1) * cut.depth);
            let tiles = first * cut.width..cut.tiles.min((first + 1) * cut.width);
            let tiles = tiles.map(|tile| cut.tile(tile));
            // SAFETY: the caller's promise.
            memory::with(|scratch| unsafe { compute(product, matrix, rows, tiles, scratch, sums) });
        };
        match threads {
            1 => sums.chunks_exact_mut(strip).enumerate().for_each(task),
            _ => sums.par_chunks_exact_mut(strip).with_max_len(1).enumerate().for_each(task),
        }
        let sums = &*sums;
        let task = |index: usize| {
            let (matrix, tile) = (index / cut.tiles, index % cut.tiles);
            let block = |block: usize| {
                let strip = (matrix * cut.blocks + block) * cut.strips + tile / cut.width;
                &sums[(strip * cut.width + tile % cut.width) * m * SUMS..][..m * SUMS]
            };
            // SAFETY: the caller's promise.
            memory::with(|scratch| unsafe {
                total(finish, matrix, m, cut.tile(tile), (0..cut.blocks).map(block), scratch);
            });
        };
        match threads {
            1 => (0..batch * cut.tiles).for_each(task),
            _ => {
                let worthwhile = 1 + 512 / (m * cut.blocks);
                (0..batch * cut.tiles).into_par_iter().with_min_len(worthwhile).for_each(task);
            }
        }
    });
}

/// Computes sums of a strip, `[columns / 64][rows][64]`, from some rows of the right operand.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
fn compute(
    product: &Product<'_>,
    batch: usize,
    rows: Range<usize>,
    tiles: impl ExactSizeIterator<Item = Range<usize>> + Clone,
    scratch: &mut Scratch,
    sums: &mut [f32],
) {
    let (lhs, rhs) = (product.lhs.matrix(batch), product.rhs.matrix(batch));
    let (m, stride) = (product.m, rhs.line_stride);
    sums.fill(0.0);
    let left = scratch.left.decode::<false>(&lhs, rows.clone());
    let mut decoded = [Line([0; 64]); _];
    let mut context = Context { decoder: Decoder::new(rhs.format), rows: m, decoded: &mut decoded };
    // Few rows at a time: where their length is a power of two, they share places of the cache. More for more sums to load and store.
    let group = match m {
        1 | 2 => 2,
        3..=FUSED => 4,
        _ => DECODED,
    };
    let ahead = group * LINES * AHEAD.div_ceil(group * LINES * CODES * tiles.len()) * stride;
    let mut row = rows.start;
    while row < rows.end {
        let lines = LINES.min(rows.end - row);
        let count = ((rows.end - row) / LINES).clamp(1, group);
        let left = &left[(row - rows.start) / LINES * m * 2..];
        for (columns, sums) in tiles.clone().zip(sums.chunks_exact_mut(m * SUMS)) {
            let codes = &rhs.codes[row * stride + columns.start..];
            let inside = [lines, columns.len()];
            let units = Units { codes, strides: [stride, LINES * stride], count, inside, ahead };
            add::<false>(&mut context, &units, left, sums, None);
        }
        row += count * LINES;
    }
}

/// Adds the sums of all blocks of a tile of 64 columns, and hands them to the epilogue.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn total<'a>(
    finish: &Finish<'_>,
    batch: usize,
    m: usize,
    columns: Range<usize>,
    mut blocks: impl Iterator<Item = &'a [f32]>,
    scratch: &mut Scratch,
) {
    let (sums, out) = (&mut scratch.sums, &mut scratch.tile);
    let sums: &mut [f32] = room(sums, m * SUMS);
    sums.copy_from_slice(blocks.next().expect("there is a block"));
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
    }
    let out: &mut [f32] = room(out, m * WIDTH);
    for (half, start) in columns.clone().step_by(WIDTH).enumerate() {
        for (out, sums) in out.chunks_exact_mut(WIDTH).zip(sums.chunks_exact(SUMS)) {
            // Vector v holds columns 4v to 4v + 3 of each 16, in its quarters.
            for (four, out) in out.chunks_exact_mut(4).enumerate() {
                let (quarter, vector) = (half * 2 + four / 4, four % 4);
                out.copy_from_slice(&sums[vector * 16 + quarter * 4..][..4]);
            }
        }
        finish
            .run(Part { batch, start: [0, start], size: [m, WIDTH.min(columns.end - start)] }, out);
    }
}
