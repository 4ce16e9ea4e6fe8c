//! The memory of a tensor, as slices.

use burn_flex::{FlexTensor, Layout};

/// Whether the elements lie row by row from the start of the memory.
pub fn is_plain(layout: &Layout) -> bool {
    layout.is_contiguous() && layout.start_offset() == 0
}

/// The tensor with the layout that its copy will have: its own, moved to the start of the memory, where its elements fill a
/// range of the memory in any order of dimensions; else a contiguous copy.
pub fn dense(tensor: FlexTensor) -> (FlexTensor, Layout) {
    let tensor = match is_dense(tensor.layout()) {
        true => tensor,
        false => tensor.to_contiguous(),
    };
    let layout = tensor.layout();
    let layout = Layout::new(layout.shape().clone(), layout.strides().to_vec(), 0);
    (tensor, layout)
}

/// Whether the elements fill a range of the memory without gaps or repetitions: a permutation of a contiguous layout.
pub fn is_dense(layout: &Layout) -> bool {
    let mut dims: Vec<_> = layout
        .shape()
        .iter()
        .zip(layout.strides())
        .filter(|(size, _)| **size != 1)
        .map(|(size, stride)| (*stride, *size))
        .collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.iter().all(|&(stride, size)| {
        let fits = stride == expected;
        expected *= size as isize;
        fits
    })
}

/// The elements of a dense tensor, in the order of its memory.
pub fn elements<'a, E: burn_backend::Element + bytemuck::Pod>(
    tensor: &'a FlexTensor,
    layout: &Layout,
) -> &'a [E] {
    let start = tensor.layout().start_offset();
    &tensor.storage::<E>()[start..start + layout.num_elements()]
}
