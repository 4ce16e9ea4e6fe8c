//! Elements and units that do not lie side by side: an index in row-major order to a place in memory.

use cubecl::prelude::*;

use crate::layout::Dims;

/// Sizes and strides as arguments of a kernel: the innermost dimension first.
pub(crate) fn args<R: Runtime>(dims: &Dims) -> (SequenceArg<R, usize>, SequenceArg<R, usize>) {
    let (mut sizes, mut strides) = (SequenceArg::new(), SequenceArg::new());
    for &(size, stride) in dims.0.iter().rev() {
        sizes.push(size);
        strides.push(stride);
    }
    (sizes, strides)
}

/// The place of the element at `index` in row-major order.
#[cube]
pub(crate) fn offset_of(index: usize, sizes: &Sequence<usize>, strides: &Sequence<usize>) -> usize {
    let rank = sizes.len().comptime();
    let mut rest = index;
    let mut offset = 0usize.runtime();
    #[unroll]
    for i in 0..rank {
        let stride = *strides.index(i);
        if comptime!(i + 1 == rank) {
            // The index is within the tensor, so what is left is within the outermost dimension.
            offset += rest * stride;
        } else {
            let size = *sizes.index(i);
            offset += (rest % size) * stride;
            rest /= size;
        }
    }
    offset
}

/// The place of a unit among [`Units`](crate::layout::Units).
#[cube]
pub(crate) fn position(
    unit: usize,
    columns: usize,
    pitch: usize,
    #[comptime] pitched: bool,
) -> usize {
    if comptime!(pitched) { (unit / columns) * pitch + unit % columns } else { unit }
}
