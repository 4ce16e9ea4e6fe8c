//! Memory in whole cache lines, kept by whoever uses it again.

use bytemuck::{Pod, Zeroable};

/// A cache line, and a vector.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// Room for as many numbers, which are anything.
pub(crate) fn room<T: Pod>(lines: &mut Vec<Line>, count: usize) -> &mut [T] {
    let needed = (count * size_of::<T>()).div_ceil(size_of::<Line>());
    if lines.len() < needed {
        lines.resize(needed, Line([0; 64]));
    }
    &mut bytemuck::cast_slice_mut(lines)[..count]
}
