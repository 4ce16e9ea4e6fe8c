//! Memory of tensors, used again and again.
//!
//! Codes, values and results have the same sizes in each step of a training. Allocated anew, their memory is zeroed, and the system maps its pages
//! one by one as they are written: that took a fifth of the time of a step.
#![allow(unsafe_code, reason = "memory that a tensor gives back where it is dropped")]

use std::cell::RefCell;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_backend::{Bytes, Element};
use burn_flex::{FlexTensor, Layout};

use crate::host::Held;

/// What a thread keeps free at most, in bytes.
const LIMIT: usize = 64 << 20;

/// What all threads keep free at most.
const LIMIT_OF_ALL: usize = 4 * LIMIT;

/// What is worth keeping, in bytes. Allocators keep smaller pieces themselves.
const LEAST: usize = 64 << 10;

/// What all threads keep free.
static KEPT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static FREE: RefCell<Free> = const { RefCell::new(Free(Vec::new())) };
}

/// Memory of a tensor, aligned for every type of element.
type Memory = Vec<u64>;

/// Free memory of a thread, from the least to the most recently used.
struct Free(Vec<Memory>);

impl Free {
    fn push(&mut self, memory: Memory) {
        KEPT.fetch_add(bytes(&memory), Ordering::Relaxed);
        self.0.push(memory);
    }

    fn remove(&mut self, index: usize) -> Memory {
        let memory = self.0.remove(index);
        KEPT.fetch_sub(bytes(&memory), Ordering::Relaxed);
        memory
    }

    fn total(&self) -> usize {
        self.0.iter().map(bytes).sum()
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.total(), Ordering::Relaxed);
    }
}

fn bytes(memory: &Memory) -> usize {
    memory.len() * size_of::<u64>()
}

/// A tensor of the given layout, which starts at the beginning of its memory and leaves no gaps; `fill` writes every element.
pub fn tensor<E: Element + bytemuck::Pod>(
    layout: Layout,
    fill: impl FnOnce(&mut [E]),
) -> FlexTensor {
    tensor_and(layout, fill).0
}

/// The same, and what `fill` returns.
pub fn tensor_and<E: Element + bytemuck::Pod, R>(
    layout: Layout,
    fill: impl FnOnce(&mut [E]) -> R,
) -> (FlexTensor, R) {
    let elements = layout.num_elements();
    let bytes = elements * size_of::<E>();
    let (bytes, result) = if bytes < LEAST {
        let mut values = vec![E::zeroed(); elements];
        let result = fill(&mut values);
        (Bytes::from_elems(values), result)
    } else {
        let words = bytes.div_ceil(size_of::<u64>());
        let mut memory = Pooled(take(words).unwrap_or_else(|| vec![0; words]));
        let result = fill(&mut bytemuck::cast_slice_mut(&mut memory.0)[..elements]);
        // SAFETY: the memory is at least as long, and all of it is initialized.
        (unsafe { Bytes::from_controller(Box::new(Held(memory)), bytes) }, result)
    };
    (FlexTensor::new(bytes, layout, E::dtype()), result)
}

/// Takes free memory of this many words out.
fn take(words: usize) -> Option<Memory> {
    FREE.with_borrow_mut(|free| {
        // The most recently used one may still be in a cache.
        let index = free.0.iter().rposition(|memory| memory.len() == words)?;
        Some(free.remove(index))
    })
}

/// Keeps memory, and lets go of what this thread has not used for longest, beyond its limit and beyond that of all.
fn keep(memory: Memory) {
    if bytes(&memory) > LIMIT {
        return;
    }
    // A thread that ends keeps nothing.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        free.push(memory);
        let mut total = free.total();
        while total > LIMIT || total > 0 && KEPT.load(Ordering::Relaxed) > LIMIT_OF_ALL {
            total -= bytes(&free.remove(0));
        }
    });
}

/// Memory that goes back to the thread which drops it.
struct Pooled(Memory);

impl AsRef<[u64]> for Pooled {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl AsMut<[u64]> for Pooled {
    fn as_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        keep(mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
    use std::thread;

    use burn_backend::Shape;

    use super::*;

    /// What all threads keep is counted: one test at a time.
    fn one_at_a_time() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Elements that are worth keeping.
    const MANY: usize = LEAST / 4 + 3;

    fn filled(elements: usize, value: f32) -> FlexTensor {
        let layout = Layout::contiguous(Shape::new([elements]));
        tensor(layout, |values: &mut [f32]| values.fill(value))
    }

    fn kept() -> usize {
        FREE.with_borrow(Free::total)
    }

    #[test]
    fn memory_in_use_is_never_given_out_again() {
        let _one = one_at_a_time();
        for elements in [100, MANY] {
            let first = filled(elements, 1.0);
            let second = filled(elements, 2.0);
            let shared = second.clone();
            assert_eq!(first.storage::<f32>(), vec![1.0; elements]);
            let address = first.bytes().as_ptr();
            drop((first, second));
            let third = filled(elements, 3.0);
            assert!(elements < MANY || third.bytes().as_ptr() == address);
            assert_eq!(shared.storage::<f32>(), vec![2.0; elements]);
            assert_eq!(third.storage::<f32>(), vec![3.0; elements]);
        }
    }

    #[test]
    fn elements_of_every_size_fill_their_memory() {
        let _one = one_at_a_time();
        let layout = || Layout::contiguous(Shape::new([LEAST + 5]));
        let (codes, last) = tensor_and(layout(), |codes: &mut [u8]| {
            codes.fill(7);
            codes.len()
        });
        assert_eq!((last, codes.storage::<u8>().len()), (LEAST + 5, LEAST + 5));
        let mut copy = codes.clone();
        copy.storage_mut::<u8>()[0] = 9;
        assert_eq!((codes.storage::<u8>()[0], copy.storage::<u8>()[0]), (7, 9));
        let data = crate::host::numbers::<u8>(codes.into_data());
        assert_eq!(data, vec![7; LEAST + 5]);
    }

    #[test]
    fn memory_goes_to_the_thread_that_drops_it() {
        let _one = one_at_a_time();
        let tensor = filled(MANY, 1.0);
        let elsewhere = thread::spawn(move || {
            drop(tensor);
            kept()
        });
        let before = kept();
        assert_eq!(elsewhere.join().expect("it ends"), MANY.div_ceil(2) * 8);
        assert_eq!(kept(), before);
    }

    #[test]
    fn a_thread_keeps_no_more_than_the_limit() {
        let _one = one_at_a_time();
        let tensors: Vec<_> = (0..9).map(|i| filled((2 << 20) + i, 1.0)).collect();
        drop(tensors);
        assert!((LIMIT / 2..=LIMIT).contains(&kept()), "{}", kept());
        // What is too large to be kept takes nothing else out.
        let before = kept();
        drop(filled(LIMIT / 4 + 1, 1.0));
        assert_eq!(kept(), before);
    }

    /// Threads that live on, each with as much as it may keep: more than all may.
    #[test]
    fn all_threads_keep_no_more_than_their_limit() {
        let _one = one_at_a_time();
        let barrier = Barrier::new(7);
        thread::scope(|scope| {
            let hold = || {
                drop((0..4).map(|i| filled((4 << 20) - i, 1.0)).collect::<Vec<_>>());
                barrier.wait();
                barrier.wait();
            };
            let threads = [(); 6].map(|()| scope.spawn(hold));
            barrier.wait();
            let all = KEPT.load(Ordering::Relaxed);
            // Other tests of this process may hold some for a moment.
            assert!((LIMIT_OF_ALL / 2..=LIMIT_OF_ALL + LIMIT).contains(&all), "{all}");
            barrier.wait();
            // A scope ends before what its threads hold is dropped, a joined thread after.
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        });
        // Threads that have ended keep nothing.
        assert!(KEPT.load(Ordering::Relaxed) <= LIMIT_OF_ALL / 2);
    }
}
