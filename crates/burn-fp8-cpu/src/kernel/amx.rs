//! AMX: tiles in registers, by inline assembly (Rust's intrinsics for them are not stable).
//!
//! Tiles keep what they hold from one block of assembly to the next: compilers never use these registers by themselves, and never reorder such blocks.
#![allow(unsafe_code, reason = "tile instructions")]

use core::arch::asm;
use core::marker::PhantomData;

use super::{Kernel, Size};
use crate::epilogue::WIDTH;
use crate::product::STEP;

/// Rows of a tile.
const HEIGHT: usize = 16;

/// Rows of a left panel: two tiles.
const ROWS: usize = 2 * HEIGHT;

/// Bytes from one row of a tile to the next: in a left panel, in a right panel and in sums.
const LEFT_STRIDE: usize = 2 * STEP;
const RIGHT_STRIDE: usize = 4 * WIDTH;
const SUMS_STRIDE: usize = 4 * WIDTH;

/// A thread whose tiles are configured. Dropped, it releases them.
pub(crate) struct Amx {
    /// It stays on its thread.
    of_thread: PhantomData<*const ()>,
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Configures the tiles of this thread.
    ///
    /// # Safety
    /// The CPU must have AMX-BF16 and AVX-512 F, BW, DQ, VL and VBMI, and the process the permission to use tiles. While this is alive, nothing
    /// else on this thread may use tiles.
    pub(crate) unsafe fn new() -> Self {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(16);
        // SAFETY: 64 bytes of palette 1, eight tiles of full size; AMX is there, and permitted.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly));
        }
        Self { of_thread: PhantomData }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: they were configured on this thread: the type is neither `Send` nor kept beyond a task.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Eight tiles, each 16 rows of 64 bytes.
impl Amx {
    /// Fills a tile with zeros.
    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: writes one configured tile.
        unsafe { asm!("tilezero tmm{}", const T, options(nomem, nostack)) };
    }

    /// Loads 16 rows of 64 bytes, which are `stride` bytes apart.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize) {
        // SAFETY: the caller's promise: 16 rows of 64 bytes.
        unsafe {
            asm!("tileloadd tmm{}, [{} + {} * 1]", const T, in(reg) start, in(reg) stride, options(readonly, nostack));
        }
    }

    /// Stores them.
    ///
    /// # Safety
    /// They can be written to.
    #[inline(always)]
    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize) {
        // SAFETY: the caller's promise: 16 rows of 64 bytes.
        unsafe {
            asm!("tilestored [{} + {} * 1], tmm{}", in(reg) start, in(reg) stride, const T, options(nostack));
        }
    }

    /// Adds the products of pairs of bf16 to 16 × 16 sums in f32.
    #[inline(always)]
    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        // SAFETY: three configured tiles.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const SUM, const LEFT, const RIGHT, options(nomem, nostack));
        }
    }
}

impl Kernel for Amx {
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
        let two = rows > HEIGHT;
        let sums = sums.as_mut_ptr().cast::<u8>();
        // Sums in tiles 0 to 3: above left, above right, below left, below right.
        let below = HEIGHT * SUMS_STRIDE;
        // SAFETY: 32 rows of 128 bytes, as asserted.
        unsafe {
            match accumulate {
                true => {
                    self.load::<0>(sums, SUMS_STRIDE);
                    self.load::<1>(sums.add(64), SUMS_STRIDE);
                    self.load::<2>(sums.add(below), SUMS_STRIDE);
                    self.load::<3>(sums.add(below + 64), SUMS_STRIDE);
                }
                false => {
                    self.zero::<0>();
                    self.zero::<1>();
                    self.zero::<2>();
                    self.zero::<3>();
                }
            }
        }
        let (mut left, mut right) = (left.as_ptr().cast::<u8>(), right.as_ptr().cast::<u8>());
        for _ in 0..steps {
            // SAFETY: 16 pairs of rows of the right panel; up to 32 rows of the left one, where the last step is followed by as many as are
            // missing.
            unsafe {
                self.load::<4>(left, LEFT_STRIDE);
                self.load::<6>(right, RIGHT_STRIDE);
                self.dot::<0, 4, 6>();
                self.load::<7>(right.add(64), RIGHT_STRIDE);
                self.dot::<1, 4, 7>();
                if two {
                    self.load::<5>(left.add(HEIGHT * LEFT_STRIDE), LEFT_STRIDE);
                    self.dot::<2, 5, 6>();
                    self.dot::<3, 5, 7>();
                }
                left = left.add(rows * LEFT_STRIDE);
                right = right.add(HEIGHT * RIGHT_STRIDE);
            }
        }
        // SAFETY: 32 rows of 128 bytes, as asserted.
        unsafe {
            self.store::<0>(sums, SUMS_STRIDE);
            self.store::<1>(sums.add(64), SUMS_STRIDE);
            self.store::<2>(sums.add(below), SUMS_STRIDE);
            self.store::<3>(sums.add(below + 64), SUMS_STRIDE);
        }
    }
}
