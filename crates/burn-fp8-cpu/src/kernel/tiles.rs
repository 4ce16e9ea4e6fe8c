//! Products of panels on eight tiles of 16 rows of 64 bytes: AMX, or its simulation.

#![allow(unsafe_code, reason = "tiles read and write memory by its address")]

use super::{Size, WIDTH};
use crate::pack::STEP;

/// Rows of a tile.
const HEIGHT: usize = 16;

/// Rows of a left panel: two tiles.
pub(crate) const ROWS: usize = 2 * HEIGHT;

/// Bytes from one row of a tile to the next: in a left panel, in a right panel and in sums.
const LEFT_STRIDE: usize = 2 * STEP;
const RIGHT_STRIDE: usize = 4 * WIDTH;
const SUMS_STRIDE: usize = 4 * WIDTH;

/// Eight tiles, each 16 rows of 64 bytes.
pub(crate) trait Tiles {
    /// Fills a tile with zeros: `tilezero`.
    fn zero<const T: usize>(&mut self);

    /// Loads 16 rows of 64 bytes, which are `stride` bytes apart: `tileloadd`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize);

    /// Stores them: `tilestored`.
    ///
    /// # Safety
    /// They can be written to.
    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize);

    /// Adds the products of pairs of bf16 to 16 × 16 sums in f32: `tdpbf16ps`.
    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self);
}

/// As [`Kernel::multiply`](super::Kernel::multiply), into 32 rows of sums whatever the number of rows. Of a panel with fewer than
/// 16 or 32 rows it reads on to that many, in each step; what it reads there only comes into sums that nobody looks at.
///
/// # Safety
/// `left` must have room for a panel of 32 rows after its last step.
pub(crate) unsafe fn multiply<T: Tiles>(
    tiles: &mut T,
    left: &[u16],
    right: &[u16],
    Size { rows, steps }: Size,
    sums: &mut [f32],
    accumulate: bool,
) {
    assert!((1..=ROWS).contains(&rows));
    assert!(left.len() >= rows * steps * STEP + (ROWS - rows) * STEP);
    assert!(right.len() >= steps * STEP * WIDTH);
    assert!(sums.len() >= ROWS * WIDTH);
    let two = rows > HEIGHT;
    let sums = sums.as_mut_ptr().cast::<u8>();
    // Sums in tiles 0 to 3: above left, above right, below left, below right.
    let below = HEIGHT * SUMS_STRIDE;
    // SAFETY: 32 rows of 128 bytes, as asserted.
    unsafe {
        match accumulate {
            true => {
                tiles.load::<0>(sums, SUMS_STRIDE);
                tiles.load::<1>(sums.add(64), SUMS_STRIDE);
                tiles.load::<2>(sums.add(below), SUMS_STRIDE);
                tiles.load::<3>(sums.add(below + 64), SUMS_STRIDE);
            }
            false => {
                tiles.zero::<0>();
                tiles.zero::<1>();
                tiles.zero::<2>();
                tiles.zero::<3>();
            }
        }
    }
    let (mut left, mut right) = (left.as_ptr().cast::<u8>(), right.as_ptr().cast::<u8>());
    for _ in 0..steps {
        // SAFETY: 16 pairs of rows of the right panel; up to 32 rows of the left one, where the last step is followed by as many as are
        // missing.
        unsafe {
            tiles.load::<4>(left, LEFT_STRIDE);
            tiles.load::<6>(right, RIGHT_STRIDE);
            tiles.dot::<0, 4, 6>();
            tiles.load::<7>(right.add(64), RIGHT_STRIDE);
            tiles.dot::<1, 4, 7>();
            if two {
                tiles.load::<5>(left.add(HEIGHT * LEFT_STRIDE), LEFT_STRIDE);
                tiles.dot::<2, 5, 6>();
                tiles.dot::<3, 5, 7>();
            }
            left = left.add(rows * LEFT_STRIDE);
            right = right.add(HEIGHT * RIGHT_STRIDE);
        }
    }
    // SAFETY: 32 rows of 128 bytes, as asserted.
    unsafe {
        tiles.store::<0>(sums, SUMS_STRIDE);
        tiles.store::<1>(sums.add(64), SUMS_STRIDE);
        tiles.store::<2>(sums.add(below), SUMS_STRIDE);
        tiles.store::<3>(sums.add(below + 64), SUMS_STRIDE);
    }
}
