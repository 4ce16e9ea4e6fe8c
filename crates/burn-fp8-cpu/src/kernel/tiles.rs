//! Products on tiles as AMX has them: two by two at a time, for panels of linear layers and for attention.
#![allow(unsafe_code, reason = "tiles are loaded from addresses")]

use super::{Kernel, Size};
use crate::epilogue::WIDTH;
use crate::product::STEP;

/// Rows of a tile.
const HEIGHT: usize = 16;

/// Bytes of a row of a tile: 32 numbers of bf16, or 16 pairs of them or sums.
const ROW: usize = 64;

/// Rows of a left panel: two tiles.
const ROWS: usize = 2 * HEIGHT;

/// Bytes from one row of sums to the next, and of a right panel.
const STRIDE: usize = 4 * WIDTH;

/// Eight tiles, each 16 rows of 64 bytes.
pub(crate) trait Tiles {
    /// Fills a tile with zeros.
    fn zero<const T: usize>(&mut self);

    /// Loads 16 rows of 64 bytes, which are `stride` bytes apart.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize);

    /// Stores them.
    ///
    /// # Safety
    /// They can be written to.
    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize);

    /// Adds the products of pairs of bf16 to 16 × 16 sums in f32.
    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self);
}

/// An operand of a block, in tiles: rows of 32 of K on the left, pairs of K of 16 columns on the right.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) start: *const u8,
    /// Bytes from one row of a tile to the next.
    pub(crate) stride: usize,
    /// Bytes from 32 of K to the next 32.
    pub(crate) step: usize,
}

/// Adds the product of up to 32 rows and 32 columns to `sums` `[32][32]`, or overwrites them with it. Says whether there are tiles below the first of the
/// left operand, and beside the first of the right one.
///
/// # Safety
/// Whole tiles of `steps` times 32 of K can be read, and all sums written to.
#[inline(always)]
pub(crate) unsafe fn block<T: Tiles>(
    tiles: &mut T,
    [left, right]: [Side; 2],
    steps: usize,
    [below, beside]: [bool; 2],
    sums: *mut f32,
    accumulate: bool,
) {
    let sums = sums.cast::<u8>();
    // Sums in tiles 0 to 3: above left, above right, below left, below right.
    let lower = HEIGHT * STRIDE;
    // SAFETY: 32 rows of 128 bytes of sums, and the tiles of each step, as the caller promises.
    unsafe {
        match accumulate {
            true => {
                tiles.load::<0>(sums, STRIDE);
                tiles.load::<1>(sums.add(ROW), STRIDE);
                tiles.load::<2>(sums.add(lower), STRIDE);
                tiles.load::<3>(sums.add(lower + ROW), STRIDE);
            }
            false => {
                tiles.zero::<0>();
                tiles.zero::<1>();
                tiles.zero::<2>();
                tiles.zero::<3>();
            }
        }
        for step in 0..steps {
            let lhs = left.start.add(step * left.step);
            let rhs = right.start.add(step * right.step);
            tiles.load::<4>(lhs, left.stride);
            tiles.load::<6>(rhs, right.stride);
            tiles.dot::<0, 4, 6>();
            if beside {
                tiles.load::<7>(rhs.add(ROW), right.stride);
                tiles.dot::<1, 4, 7>();
            }
            if below {
                tiles.load::<5>(lhs.add(HEIGHT * left.stride), left.stride);
                tiles.dot::<2, 5, 6>();
                if beside {
                    tiles.dot::<3, 5, 7>();
                }
            }
        }
        tiles.store::<0>(sums, STRIDE);
        tiles.store::<1>(sums.add(ROW), STRIDE);
        tiles.store::<2>(sums.add(lower), STRIDE);
        tiles.store::<3>(sums.add(lower + ROW), STRIDE);
    }
}

impl<T: Tiles> Kernel for T {
    // A right panel of 32 KiB stays in the first-level cache (48 KiB) while the left panels go by.
    const DEPTH: usize = 256;
    const TASK: [usize; 2] = [512, 512];
    const SUMS: usize = ROWS;

    fn panel(_rows: usize) -> usize {
        ROWS
    }

    /// Into 32 rows of sums whatever the number of rows. Of a panel with fewer than 16 or 32 rows it reads on to that many, in each step;
    /// what it reads there only comes into sums that nobody looks at.
    fn multiply(
        &mut self,
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
        let left = Side { start: left.as_ptr().cast(), stride: ROW, step: rows * ROW };
        let right = Side { start: right.as_ptr().cast(), stride: STRIDE, step: HEIGHT * STRIDE };
        let tiles = [rows > HEIGHT, true];
        // SAFETY: 16 pairs of rows of the right panel in each step; up to 32 rows of the left one, where the last step is followed by as many as
        // are missing; 32 rows of 32 sums: all as asserted.
        unsafe { block(self, [left, right], steps, tiles, sums.as_mut_ptr(), accumulate) };
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::kernel::amx::Amx;
    use crate::kernel::software::Software;
    use crate::unit::Unit;

    /// Small integers, whose sums are exact.
    fn number(index: usize) -> f32 {
        (index * 37 % 15) as f32 - 7.0
    }

    #[test]
    fn panels_are_multiplied_as_element_by_element() {
        panels_are_exact(Software::new());
        if Unit::AmxBf16.require().is_ok() {
            // SAFETY: it is there, and permitted; nothing else on this thread uses tiles.
            panels_are_exact(unsafe { Amx::new() });
        }
    }

    /// Some numbers of rows and steps, twice: what is read beyond the rows is NaN.
    fn panels_are_exact(mut kernel: impl Kernel) {
        for (rows, steps) in [1, 2, 15, 16, 17, 31, 32].into_iter().flat_map(|r| [(r, 1), (r, 3)]) {
            let k = steps * STEP;
            let (lhs, rhs) = (|row, k| number(row * 7 + k), |k, column| number(k * 5 + column));
            let bits = |x| bf16::from_f32(x).to_bits();
            let mut left = vec![bits(f32::NAN); rows * k + (ROWS - rows) * STEP];
            let mut right = vec![0; k * WIDTH];
            for k in 0..k {
                let (step, element) = (k / STEP, k % STEP);
                for row in 0..rows {
                    left[(step * rows + row) * STEP + element] = bits(lhs(row, k));
                }
                for column in 0..WIDTH {
                    right[(k / 2 * WIDTH + column) * 2 + k % 2] = bits(rhs(k, column));
                }
            }
            let mut sums = vec![f32::NAN; ROWS * WIDTH];
            for (times, accumulate) in [(1.0, false), (2.0, true)] {
                kernel.multiply(&left, &right, Size { rows, steps }, &mut sums, accumulate);
                for (at, sum) in sums[..rows * WIDTH].iter().enumerate() {
                    let products = (0..k).map(|k| lhs(at / WIDTH, k) * rhs(k, at % WIDTH));
                    assert_eq!(*sum, times * products.sum::<f32>(), "{rows} {steps} {at}");
                }
            }
        }
    }
}
