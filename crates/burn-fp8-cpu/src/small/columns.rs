//! The right operand column by column, each a line without gaps: dot products, four columns at a time.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;
use core::array;
use core::ops::Range;

use rayon::prelude::*;

use super::kernel::{CODES, Context, DECODED, FUSED, LINES, OfBlocks, SUMS, Units, add, pairs};
use super::memory::{self, AHEAD, Scratch, threads};
use crate::epilogue::{Finish, Part, WIDTH};
use crate::memory::{Line, room};
use crate::pack::Decoder;
use crate::product::{Product, SumScales};

/// # Safety
/// The CPU must have the instructions of [`Unit::Avx512Bf16`](crate::Unit).
pub(super) unsafe fn run(product: &Product<'_>, finish: &Finish<'_>) {
    let &Product { batch, n, .. } = product;
    let (threads, tasks) = threads(product);
    let width = n.div_ceil(tasks.div_ceil(batch)).next_multiple_of(2 * WIDTH);
    let strips = n.div_ceil(width);
    let task = |index: usize| {
        let (matrix, first) = (index / strips, index % strips * width);
        let columns = first..n.min(first + width);
        // SAFETY: the caller's promise.
        memory::with(|scratch| unsafe { compute(product, matrix, columns, scratch, finish) });
    };
    match threads {
        1 => (0..batch * strips).for_each(task),
        _ => (0..batch * strips).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// Computes columns of the result.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")]
fn compute(
    product: &Product<'_>,
    batch: usize,
    columns: Range<usize>,
    scratch: &mut Scratch,
    finish: &Finish<'_>,
) {
    let (lhs, rhs) = (product.lhs.matrix(batch), product.rhs.matrix(batch));
    let &Product { m, k, .. } = product;
    let left = scratch.left.decode::<true>(&lhs, 0..k);
    let sums: &mut [f32] = room(&mut scratch.sums, m * SUMS);
    let tile: &mut [f32] = room(&mut scratch.tile, m * WIDTH);
    let (of_rows, factors) = (&mut scratch.of_rows, &mut scratch.factors);
    if let Some(blocks) = &product.blocks {
        scales_of_rows(blocks, [m, k], of_rows);
    }
    let mut decoded = [Line([0; 64]); _];
    let mut context = Context { decoder: Decoder::new(rhs.format), rows: m, decoded: &mut decoded };
    let mut last = [usize::MAX; LINES];
    for first in columns.clone().step_by(WIDTH) {
        let width = WIDTH.min(columns.end - first);
        for place in (0..width).step_by(LINES) {
            sums.fill(0.0);
            let column = first + place;
            let codes = &rhs.codes[column * rhs.line_stride..];
            let lines = LINES.min(width - place);
            let blocks = product.blocks.as_ref().map(|SumScales { rhs, along, .. }| {
                let of_columns = rhs.transpose();
                let starts: [_; LINES] =
                    array::from_fn(|line| of_columns.row(column + line.min(lines - 1)));
                // Neighbours are in the same blocks, mostly.
                if starts != last {
                    last = starts;
                    factors.clear();
                    let places = of_columns.columns(0, *along);
                    for (place, of_rows) in places.zip(of_rows.chunks_exact(m)) {
                        let of_lines = starts.map(|start| of_columns.at(start + place));
                        factors.extend(of_rows.iter().map(|row| of_lines.map(|line| row * line)));
                    }
                }
                OfBlocks { factors, units: along.div_ceil(CODES), first: 0 }
            });
            let inside = [lines, k];
            add_lines(&mut context, codes, rhs.line_stride, inside, left, sums, blocks);
            for (tile, sums) in tile.chunks_exact_mut(WIDTH).zip(sums.chunks_exact(SUMS)) {
                tile[place..][..LINES].copy_from_slice(&add_up(sums));
            }
        }
        finish.run(Part { batch, start: [0, first], size: [m, width] }, tile);
    }
}

/// Adds the products of at most four columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
fn add_lines(
    context: &mut Context<'_>,
    codes: &[u8],
    stride: usize,
    [lines, k]: [usize; 2],
    left: &[i32],
    sums: &mut [f32],
    blocks: Option<OfBlocks<'_>>,
) {
    // What is decoded into memory comes in pieces that it has room for.
    let group = if context.rows <= FUSED && lines == LINES { usize::MAX } else { DECODED };
    let ahead = LINES * stride * AHEAD.div_ceil(LINES * stride);
    let mut first = 0;
    while first < k {
        let count = ((k - first) / CODES).clamp(1, group);
        let inside = [lines, CODES.min(k - first)];
        let units =
            Units { codes: &codes[first..], strides: [stride, CODES], count, inside, ahead };
        let left = &left[first / CODES * context.rows * 2 * pairs(true)..];
        let blocks = blocks.map(|blocks| OfBlocks { first: first / CODES, ..blocks });
        add::<true>(context, &units, left, sums, blocks);
        first += count * CODES;
    }
}

/// The scales of all rows, block by block of K.
fn scales_of_rows(
    SumScales { lhs, along, .. }: &SumScales<'_>,
    [m, k]: [usize; 2],
    scales: &mut Vec<f32>,
) {
    scales.clear();
    for place in lhs.columns(0, *along).take(k.div_ceil(*along)) {
        scales.extend((0..m).map(|row| lhs.at(lhs.row(row) + place)));
    }
}

/// Adds up each of four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn add_up(sums: &[f32]) -> [f32; LINES] {
    assert!(sums.len() >= SUMS);
    // SAFETY: four vectors of sums, as asserted.
    let [a, b, c, d] = [0, 16, 32, 48].map(|i| unsafe { _mm512_loadu_ps(sums.as_ptr().add(i)) });
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let [ab, cd] = [_mm512_castps_pd(ab), _mm512_castps_pd(cd)];
    let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
    let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
    // Each quarter has a part of a, b, c and d.
    let all = _mm512_add_ps(low, high);
    let half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
    let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
    let mut added = [0.0; LINES];
    // SAFETY: four numbers are written to an array of four.
    unsafe { _mm_storeu_ps(added.as_mut_ptr(), quarter) };
    added
}
