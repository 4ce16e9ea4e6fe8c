//! A few rows times a matrix whose rows are summed over: converted in registers, so that one row takes as long as reading the matrix.
#![allow(unsafe_code, reason = "vector instructions and prefetches")]

use core::arch::x86_64::*;
use core::array::from_fn;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use super::strips::{in_strips, lines};
use super::vectors::{LONGEST_STEP, Vectors, Wide, Work, order, prefetch};
use crate::blocks::BlockScales;

/// Bytes of a row that are asked for ahead of it, into the first-level and into the second-level cache, which more lines can be on their way to. On one
/// thread of a Xeon with AVX-512 the two together gain a fifth.
const AHEAD: [usize; 2] = [1536, 4 << 10];

/// Writes the products of the rows of `x` `[M, K]` with those of a matrix to `y` `[M, N]`: whether that could be done, for want of instructions, because of
/// elements that are not known, of blocks that end between steps, or of more rows than [`Vectors::MOST`].
///
/// With a single row the products of a block are summed first, then multiplied by its scale; with more the numbers are.
pub(super) fn multiply<V: Vectors, W: Wide<V>>(
    x: &[f32],
    matrix: &[W::Element],
    scales: Option<BlockScales<'_>>,
    [m, k, n]: [usize; 3],
    y: &mut [f32],
) -> bool {
    if m > V::MOST || order::<V, W>(k, scales.map_or(k, |scales| scales.block[1])).is_none() {
        return false;
    }
    let (mut room, first) = lines(m * k.next_multiple_of(V::STEP));
    let mut powers = [1.0; MOST];
    let places: [usize; LONGEST_STEP] = from_fn(W::place);
    for (row, (x, of_row)) in x.chunks_exact(k).zip(&mut powers).enumerate() {
        *of_row = power(x, W::FACTOR);
        let factor = W::FACTOR / *of_row;
        let steps = room[first..].chunks_exact_mut(V::STEP).skip(row).step_by(m);
        let (whole, rest) = x.split_at(k - k % V::STEP);
        let mut last = [0.0; LONGEST_STEP];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last[..V::STEP]);
        for (x, step) in whole.chunks_exact(V::STEP).chain(last).zip(steps) {
            for (number, place) in step.iter_mut().zip(&places) {
                // The mask changes nothing: it says that the place is in the step.
                *number = x[place & (V::STEP - 1)] * factor;
            }
        }
    }
    let x = Few { steps: &room[first..], m, k, powers };
    let is_done = AtomicBool::new(true);
    in_strips([m, k, n], V::ROWS, y, |rows, y| {
        let (x, matrix) = (&x, (matrix, scales, rows.start));
        // SAFETY: the instructions are there.
        if !unsafe { V::run(Products::<W, V> { x, matrix, y }) } {
            is_done.store(false, Ordering::Relaxed);
        }
    });
    is_done.into_inner()
}

/// What `x` is divided by before it is multiplied by a factor, a power of two too: all is exact.
fn power(x: &[f32], factor: f32) -> f32 {
    if factor == 1.0 {
        return 1.0;
    }
    // As integers, of which a loop makes vectors: those of numbers that are not infinite are ordered as their magnitudes.
    let finite = |bits: i32| if bits < f32::INFINITY.to_bits() as i32 { bits } else { 0 };
    let bits = x.iter().map(|x| finite(x.abs().to_bits() as i32));
    let exponent = bits.fold(0, i32::max) as u32 >> 23;
    // Below 2^7 is left.
    f32::from_bits((127 + exponent.saturating_sub(127 + 6)) << 23)
}

/// Rows that any vectors multiply, at most.
const MOST: usize = 8;

/// A few rows, ready to be multiplied.
pub(super) struct Few<'a> {
    /// A step of each row, then the next step of each, in the order in which elements are loaded, times what these lack, over the row's power; zeros after
    /// them, to a whole step.
    steps: &'a [f32],
    m: usize,
    k: usize,
    powers: [f32; MOST],
}

/// Numbers of a few rows that the matrix is multiplied by at a time: 32 KiB, which stay in the first-level cache.
const PORTION: usize = 8 << 10;

/// Rows of a matrix that this is done with, one after the other.
const HEIGHT: usize = 16;

/// Where bytes are that are read later, in a matrix of which `R` rows are read beside each other.
struct Ahead<const R: usize> {
    /// From this byte of a row on they are in the rows that come another time later.
    turn: usize,
    /// How far from the byte, before `turn` and from there on.
    by: [usize; 2],
}

impl<const R: usize> Ahead<R> {
    /// So many bytes of a row ahead, in rows of `length` bytes.
    fn new(bytes: usize, length: usize) -> Self {
        let by = |times: usize| bytes + times * (R - 1) * length;
        let times = bytes / length;
        Self { turn: length - bytes % length, by: [by(times), by(times + 1)] }
    }

    #[inline(always)]
    fn of(&self, byte: usize) -> usize {
        self.by[usize::from(byte >= self.turn)]
    }
}

/// The products of a few rows with those of a matrix: whether all elements were known. A row is multiplied by [`Vectors::ROWS`] of the matrix at a time, several by
/// two or one: their sums fill the registers.
struct Products<'a, W: Wide<V>, V: Vectors> {
    x: &'a Few<'a>,
    matrix: Weight<'a, W::Element>,
    y: &'a mut [f32],
}

impl<W: Wide<V>, V: Vectors> Work<V> for Products<'_, W, V> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        let Self { x, matrix, y } = self;
        let mut seen = W::seen();
        // SAFETY: the caller's promise.
        unsafe {
            match (x.m.min(V::MOST), V::ROWS) {
                (1, 4) => one::<V, W, 4>(x, matrix, y, &mut seen),
                (1, _) => one::<V, W, 2>(x, matrix, y, &mut seen),
                (2, _) => some::<V, W, 2, 2>(x, matrix, y, &mut seen),
                (3, _) => some::<V, W, 2, 3>(x, matrix, y, &mut seen),
                (4, _) => some::<V, W, 2, 4>(x, matrix, y, &mut seen),
                (5, _) => some::<V, W, 2, 5>(x, matrix, y, &mut seen),
                (6, _) => some::<V, W, 2, 6>(x, matrix, y, &mut seen),
                (7, _) => some::<V, W, 1, 7>(x, matrix, y, &mut seen),
                _ => some::<V, W, 1, MOST>(x, matrix, y, &mut seen),
            }
        }
        W::are_known(seen)
    }
}

/// Rows of a matrix from one on, with scales of blocks.
type Weight<'a, E> = (&'a [E], Option<BlockScales<'a>>, usize);

/// The products of one row.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn one<V: Vectors, W: Wide<V>, const R: usize>(
    x: &Few<'_>,
    (matrix, scales, first): Weight<'_, W::Element>,
    y: &mut [f32],
    seen: &mut W::Seen,
) {
    let (groups, rest) = y.as_chunks_mut::<R>();
    let of_rest = first + groups.len() * R;
    // SAFETY: the caller's promise.
    unsafe {
        for (index, y) in groups.iter_mut().enumerate() {
            *y = row::<V, W, R>(x, (matrix, scales, first + index * R), seen);
        }
        for (index, y) in rest.iter_mut().enumerate() {
            [*y] = row::<V, W, 1>(x, (matrix, scales, of_rest + index), seen);
        }
    }
}

/// The products of `P` rows: for a while of K, those with some rows of the matrix, then the next while, so that `x` stays in the first-level cache.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn some<V: Vectors, W: Wide<V>, const R: usize, const P: usize>(
    x: &Few<'_>,
    (matrix, scales, first): Weight<'_, W::Element>,
    y: &mut [f32],
    seen: &mut W::Seen,
) {
    let (k, count) = (x.k, y.len() / P);
    let whiles = k.div_ceil(PORTION / P);
    let depth = k.div_ceil(whiles).next_multiple_of(V::STEP);
    for start in (0..count).step_by(HEIGHT) {
        let height = HEIGHT.min(count - start);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); P]; HEIGHT];
            for from in (0..k).step_by(depth) {
                let columns = from..k.min(from + depth);
                // The next while of the same row, or the first one of a later row.
                let ahead = if columns.end < k { depth } else { HEIGHT * k - from };
                let place = |row| ((matrix, scales, first + start + row), columns.clone(), ahead);
                let mut row = 0;
                while row + R <= height {
                    let sums = sums[row..].first_chunk_mut::<R>().expect("R of HEIGHT rows");
                    match scales {
                        None => tile::<V, W, R, P, false>(x, place(row), sums, seen),
                        Some(_) => tile::<V, W, R, P, true>(x, place(row), sums, seen),
                    }
                    row += R;
                }
                while row < height {
                    let sums = sums[row..].first_chunk_mut::<1>().expect("one of HEIGHT rows");
                    tile::<V, W, 1, P, true>(x, place(row), sums, seen);
                    row += 1;
                }
            }
            for (row, sums) in sums[..height].iter().enumerate() {
                for p in 0..P {
                    y[p * count + start + row] = x.powers[p] * V::sum(sums[p]);
                }
            }
        }
    }
}

/// `R` rows of a matrix of rows of `k`, the columns of a block, and its scales in each row.
#[inline(always)]
fn rows_of<E, const R: usize>(
    (matrix, scales, first): Weight<'_, E>,
    k: usize,
) -> ([&[E]; R], usize, [&[f32]; R]) {
    let rows = from_fn(|r| &matrix[(first + r) * k..][..k]);
    match scales {
        None => (rows, k, [&[1.0]; R]),
        Some(BlockScales { block: [height, columns], scales: values }) => {
            let columns = columns.min(k);
            let scales = from_fn(|r| &values[(first + r) / height * k.div_ceil(columns)..]);
            (rows, columns, scales)
        }
    }
}

/// Adds the products of `P` rows with `R` rows of a matrix, of some columns, and asks for elements that are so many ahead. What is added for a row does not
/// depend on the others.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn tile<V: Vectors, W: Wide<V>, const R: usize, const P: usize, const SCALED: bool>(
    x: &Few<'_>,
    (matrix, range, ahead): (Weight<'_, W::Element>, Range<usize>, usize),
    totals: &mut [[V::Floats; P]; R],
    seen: &mut W::Seen,
) {
    let k = x.k;
    let (rows, columns, scales) = rows_of::<_, R>(matrix, k);
    let ahead = ahead * size_of::<W::Element>();
    let step = V::STEP * size_of::<W::Element>();
    let whole = range.end - range.len() % V::STEP;
    let mut from = range.start;
    // In registers.
    let mut sums = *totals;
    // SAFETY: the caller's promise; a step of elements each time, and as many of each row of `x`.
    unsafe {
        while from < whole {
            let block = from / columns;
            let to = whole.min((block + 1) * columns);
            let mut of_block = [V::splat(1.0); R];
            for r in 0..R {
                of_block[r] = V::splat(scales[r][block]);
            }
            for column in (from..to).step_by(V::STEP) {
                let x = x.steps[column * P..][..V::STEP * P].as_ptr();
                let mut starts = [rows[0].as_ptr(); R];
                for r in 0..R {
                    starts[r] = rows[r][column..][..V::STEP].as_ptr();
                    // A step of codes can be half of a line.
                    if step >= 64 || starts[r].addr() & step == 0 {
                        prefetch::<_MM_HINT_T1, _>(starts[r].wrapping_byte_add(ahead), V::STEP);
                    }
                }
                add_steps::<V, W, R, P, SCALED>(&mut sums, x, starts, of_block, seen);
            }
            from = to;
        }
        if whole < range.end {
            let mut last = [[W::Element::default(); LONGEST_STEP]; R];
            let (mut starts, mut of_block) = ([last[0].as_ptr(); R], [V::splat(1.0); R]);
            for r in 0..R {
                last[r][..k - whole].copy_from_slice(&rows[r][whole..]);
                starts[r] = last[r].as_ptr();
                of_block[r] = V::splat(scales[r][whole / columns]);
            }
            let x = x.steps[whole * P..][..V::STEP * P].as_ptr();
            add_steps::<V, W, R, P, SCALED>(&mut sums, x, starts, of_block, seen);
        }
    }
    *totals = sums;
}

/// Adds the products with a step of elements of each row, times a scale.
///
/// # Safety
/// The CPU must have the instructions, and there must be a step of all.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "iterators over so many sums leave them in memory")]
unsafe fn add_steps<V: Vectors, W: Wide<V>, const R: usize, const P: usize, const SCALED: bool>(
    sums: &mut [[V::Floats; P]; R],
    x: *const f32,
    starts: [*const W::Element; R],
    scales: [V::Floats; R],
    seen: &mut W::Seen,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut numbers = [[V::splat(0.0); 4]; R];
        for r in 0..R {
            numbers[r] = W::load(starts[r], seen);
            if SCALED {
                for number in &mut numbers[r] {
                    *number = V::scale(*number, scales[r]);
                }
            }
        }
        for i in 0..4 {
            for p in 0..P {
                let x = x.add(p * V::STEP + V::STEP / 4 * i);
                for r in 0..R {
                    sums[r][p] = V::add_product(sums[r][p], x, numbers[r][i]);
                }
            }
        }
    }
}

/// The products of one row with `R` rows of a matrix. That of a row does not depend on the others.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn row<V: Vectors, W: Wide<V>, const R: usize>(
    x: &Few<'_>,
    matrix: Weight<'_, W::Element>,
    seen: &mut W::Seen,
) -> [f32; R] {
    let k = x.k;
    let (rows, columns, scales) = rows_of::<_, R>(matrix, k);
    let size = size_of::<W::Element>();
    let step = V::STEP * size;
    let ahead = AHEAD.map(|bytes| Ahead::<R>::new(bytes, k * size));
    let whole = k - k % V::STEP;
    let width = (columns / V::STEP * V::STEP).max(V::STEP);
    // SAFETY: the caller's promise; a step of elements each time, and as many of `x`.
    unsafe {
        let mut totals = [V::splat(0.0); R];
        for from in (0..whole).step_by(width) {
            let mut sums = [[V::splat(0.0); 4]; R];
            for column in (from..whole.min(from + width)).step_by(V::STEP) {
                let x = x.steps[column..][..V::STEP].as_ptr();
                let [near, far] = [0, 1].map(|cache| ahead[cache].of(column * size));
                for r in 0..R {
                    let start = rows[r][column..][..V::STEP].as_ptr();
                    // A step of codes can be half of a line.
                    if step >= 64 || start.addr() & step == 0 {
                        prefetch::<_MM_HINT_T0, _>(start.wrapping_byte_add(near), V::STEP);
                        prefetch::<_MM_HINT_T1, _>(start.wrapping_byte_add(far), V::STEP);
                    }
                    add_step::<V, W>(&mut sums[r], x, start, seen);
                }
            }
            for r in 0..R {
                totals[r] = add_block::<V>(totals[r], sums[r], scales[r][from / columns]);
            }
        }
        if whole < k {
            for r in 0..R {
                let mut last = [W::Element::default(); LONGEST_STEP];
                last[..k - whole].copy_from_slice(&rows[r][whole..]);
                let mut sums = [V::splat(0.0); 4];
                add_step::<V, W>(&mut sums, x.steps[whole..].as_ptr(), last.as_ptr(), seen);
                totals[r] = add_block::<V>(totals[r], sums, scales[r][whole / columns]);
            }
        }
        let mut results = [0.0; R];
        for r in 0..R {
            results[r] = x.powers[0] * V::sum(totals[r]);
        }
        results
    }
}

/// Adds the products with a step of elements.
///
/// # Safety
/// The CPU must have the instructions, and there must be a step of both.
#[inline(always)]
unsafe fn add_step<V: Vectors, W: Wide<V>>(
    sums: &mut [V::Floats; 4],
    x: *const f32,
    start: *const W::Element,
    seen: &mut W::Seen,
) {
    // SAFETY: the caller's promises.
    unsafe {
        for (i, y) in W::load(start, seen).into_iter().enumerate() {
            sums[i] = V::add_product(sums[i], x.add(V::STEP / 4 * i), y);
        }
    }
}

/// Adds the sums of a block, times its scale.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn add_block<V: Vectors>(total: V::Floats, sums: [V::Floats; 4], scale: f32) -> V::Floats {
    let [a, b, c, d] = sums;
    // SAFETY: the caller's promise.
    unsafe { V::add_scaled(total, V::add(V::add(a, b), V::add(c, d)), V::splat(scale)) }
}
