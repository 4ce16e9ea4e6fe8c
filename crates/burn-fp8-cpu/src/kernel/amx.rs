//! AMX: tiles in registers, by inline assembly (Rust's intrinsics for them are not stable).
//!
//! Tiles keep what they hold from one block of assembly to the next: compilers never use these registers by themselves, and never reorder such blocks.
#![allow(unsafe_code, reason = "tile instructions")]

use core::arch::asm;
use core::marker::PhantomData;

use super::tiles::Tiles;

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

impl Tiles for Amx {
    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: writes one configured tile.
        unsafe { asm!("tilezero tmm{}", const T, options(nomem, nostack)) };
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize) {
        // SAFETY: the caller's promise: 16 rows of 64 bytes.
        unsafe {
            asm!("tileloadd tmm{}, [{} + {} * 1]", const T, in(reg) start, in(reg) stride, options(readonly, nostack));
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize) {
        // SAFETY: the caller's promise: 16 rows of 64 bytes.
        unsafe {
            asm!("tilestored [{} + {} * 1], tmm{}", in(reg) start, in(reg) stride, const T, options(nostack));
        }
    }

    #[inline(always)]
    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        // SAFETY: three configured tiles.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const SUM, const LEFT, const RIGHT, options(nomem, nostack));
        }
    }
}
