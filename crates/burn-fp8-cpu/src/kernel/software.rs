//! Tiles in software: what runs on AMX is tested on any machine.
#![allow(unsafe_code, reason = "tiles are loaded from addresses")]

use super::tiles::Tiles;

#[path = "../../tests/kernels/common/tile.rs"]
mod tile;

use tile::Tile;

/// Eight tiles.
pub(crate) struct Software([Tile; 8]);

impl Software {
    /// With numbers that nobody wants.
    pub(crate) fn new() -> Self {
        Self([[[u32::MAX; 16]; 16]; 8])
    }
}

impl Tiles for Software {
    fn zero<const T: usize>(&mut self) {
        self.0[T] = Tile::default();
    }

    unsafe fn load<const T: usize>(&mut self, start: *const u8, stride: usize) {
        for (row, words) in self.0[T].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *words = unsafe { start.add(row * stride).cast::<[u32; 16]>().read_unaligned() };
        }
    }

    unsafe fn store<const T: usize>(&self, start: *mut u8, stride: usize) {
        for (row, words) in self.0[T].iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { start.add(row * stride).cast::<[u32; 16]>().write_unaligned(*words) };
        }
    }

    fn dot<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        let (left, right) = (self.0[LEFT], self.0[RIGHT]);
        tile::dot(&mut self.0[SUM], &left, &right);
    }
}
