//! AMX's tiles in plain Rust, for tests on machines without them.
//!
//! After the pseudocode of TDPBF16PS in Intel's Software Developer's Manual: fused products are summed from zero, those of even elements and those of odd
//! ones apart; both sums are added to each other, then to the tile. Subnormal inputs and results are zeros, rounding is to nearest even.
#![allow(unsafe_code, reason = "tiles read and write memory by its address")]

use core::ops::Range;

use super::tiles::{self, Tiles};
use super::{Kernel, Size};
use crate::codes::Codes;
use crate::epilogue::{Finish, Part};
use crate::pack;

const ROWS: usize = 16;
const BYTES: usize = 64;

/// Eight tiles in memory.
#[derive(Default)]
pub(crate) struct SimulatedTiles {
    tiles: [Tile; 8],
}

#[derive(Clone, Copy)]
struct Tile([[u8; BYTES]; ROWS]);

impl Default for Tile {
    fn default() -> Self {
        Self([[0; BYTES]; ROWS])
    }
}

impl Tile {
    fn f32(&self, row: usize, column: usize) -> f32 {
        let bytes = &self.0[row][4 * column..][..4];
        f32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    fn bf16(&self, row: usize, column: usize) -> f32 {
        let bytes = &self.0[row][2 * column..][..2];
        let bits = u16::from_le_bytes(bytes.try_into().expect("two bytes"));
        flush(f32::from_bits(u32::from(bits) << 16))
    }
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

impl Tiles for SimulatedTiles {
    fn zero<const T: usize>(&mut self) {
        self.tiles[T] = Tile::default();
    }

    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize) {
        for (index, row) in self.tiles[T].0.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *row = unsafe { start.add(index * stride).cast::<[u8; BYTES]>().read() };
        }
    }

    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize) {
        for (index, row) in self.tiles[T].0.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { start.add(index * stride).cast::<[u8; BYTES]>().write(*row) };
        }
    }

    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        let (left, right) = (self.tiles[LEFT], self.tiles[RIGHT]);
        let sums = &mut self.tiles[SUM];
        for row in 0..ROWS {
            for column in 0..BYTES / 4 {
                let of_half = |half: usize| {
                    (0..BYTES / 4).fold(0f32, |sum, pair| {
                        let a = left.bf16(row, 2 * pair + half);
                        flush(a.mul_add(right.bf16(pair, 2 * column + half), sum))
                    })
                };
                let sum = flush(of_half(0) + of_half(1));
                let sum = flush(flush(sums.f32(row, column)) + sum);
                sums.0[row][4 * column..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

impl Kernel for SimulatedTiles {
    // Small, so that tests see several blocks and tasks.
    const DEPTH: usize = 64;
    const TASK: [usize; 2] = [64, 96];
    const SUMS: usize = tiles::ROWS;

    fn panel(_rows: usize) -> usize {
        tiles::ROWS
    }

    fn pack_left(
        &mut self,
        matrix: &Codes<'_>,
        rows: Range<usize>,
        depth: Range<usize>,
        panel: usize,
        panels: &mut [u16],
    ) {
        pack::left(matrix, rows, depth, panel, panels);
    }

    fn pack_right(
        &mut self,
        matrix: &Codes<'_>,
        columns: Range<usize>,
        depth: Range<usize>,
        panels: &mut [u16],
    ) {
        pack::right(matrix, columns, depth, panels);
    }

    fn multiply(
        &mut self,
        left: &[u16],
        right: &[u16],
        size: Size,
        sums: &mut [f32],
        accumulate: bool,
    ) {
        // SAFETY: tasks leave room for a panel after the last one.
        unsafe { tiles::multiply(self, left, right, size, sums, accumulate) }
    }

    fn finish(&mut self, finish: &Finish<'_>, part: Part, sums: &mut [f32]) {
        finish.run(part, sums);
    }
}
