//! Memory for decoded operands, used again and again.
//!
//! The values of an operand live for one product. Allocating them anew each time means zeroing them first, on one thread.

use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::{Bytes, DType};
use burn_flex::{FlexTensor, Layout};

/// What a thread keeps at most, in bytes. Larger operands are allocated each time.
const LIMIT: usize = 64 << 20;

thread_local! {
    /// Buffers from the least to the most recently used. One is free when nobody else holds it.
    static BUFFERS: RefCell<Vec<Arc<Bytes>>> = const { RefCell::new(Vec::new()) };
}

/// An f32 tensor of the given layout, which starts at the beginning of its memory and leaves no gaps; `fill` writes every element.
pub(super) fn tensor(layout: Layout, fill: impl FnOnce(&mut [f32])) -> FlexTensor {
    let elements = layout.num_elements();
    let mut buffer = take(elements * size_of::<f32>())
        .unwrap_or_else(|| Arc::new(Bytes::from_elems(vec![0f32; elements])));
    let bytes = Arc::get_mut(&mut buffer).expect("taken out, or new: nobody else holds it");
    fill(bytemuck::cast_slice_mut(bytes));
    keep(buffer.clone());
    FlexTensor::from_arc(buffer, layout, DType::F32)
}

/// Takes a free buffer of this size out.
fn take(size: usize) -> Option<Arc<Bytes>> {
    BUFFERS.with_borrow_mut(|buffers| {
        let free = |buffer: &mut Arc<Bytes>| buffer.len() == size && Arc::get_mut(buffer).is_some();
        let index = buffers.iter_mut().position(free)?;
        Some(buffers.remove(index))
    })
}

/// Puts a buffer in, and lets go of the least recently used ones beyond the limit.
fn keep(buffer: Arc<Bytes>) {
    if buffer.len() > LIMIT {
        return;
    }
    BUFFERS.with_borrow_mut(|buffers| {
        buffers.push(buffer);
        let mut total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        while total > LIMIT {
            total -= buffers.remove(0).len();
        }
    });
}

#[cfg(test)]
mod tests {
    use burn::tensor::Shape;

    use super::*;

    fn filled(elements: usize, value: f32) -> FlexTensor {
        tensor(Layout::contiguous(Shape::new([elements])), |values| values.fill(value))
    }

    fn kept() -> usize {
        BUFFERS.with_borrow(|buffers| buffers.iter().map(|buffer| buffer.len()).sum())
    }

    #[test]
    fn memory_in_use_is_never_given_out_again() {
        let first = filled(100, 1.0);
        let second = filled(100, 2.0);
        assert_eq!(first.storage::<f32>(), [1.0; 100]);
        assert_eq!(second.storage::<f32>(), [2.0; 100]);
        let address = first.bytes().as_ptr();
        drop(first);
        assert_eq!(filled(100, 3.0).bytes().as_ptr(), address);
        assert_eq!(second.storage::<f32>(), [2.0; 100]);
    }

    #[test]
    fn a_thread_keeps_no_more_than_the_limit() {
        let tensors: Vec<_> = (0..9).map(|i| filled((2 << 20) + i, 1.0)).collect();
        assert!(kept() <= LIMIT);
        drop(tensors);
        // What is too large to be kept takes nothing else out.
        let before = kept();
        let _large = filled(LIMIT / 4 + 1, 1.0);
        assert_eq!(kept(), before);
    }
}
