//! The allocator that counts.
#![expect(unsafe_code, reason = "an allocator is one")]

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::alloc::{GlobalAlloc, Layout, System};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts the bytes that all threads hold. While memory grows or shrinks, old and new count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Bytes that are held.
pub(super) fn held() -> usize {
    HELD.load(Relaxed)
}

/// The most bytes that were held since the peak began.
pub(super) fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Begins a new peak.
pub(super) fn begin_peak() {
    PEAK.store(held(), Relaxed);
}

/// Counts bytes where there is a pointer to them.
fn counted(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if !pointer.is_null() {
        PEAK.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }
    pointer
}

// SAFETY: all memory is the system's, given and taken as the caller asks; counting allocates nothing and does not panic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller promises is what the system asks for.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer is the system's, as each one is that was given out.
        unsafe { System.dealloc(pointer, layout) };
        HELD.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = counted(unsafe { System.realloc(pointer, layout, size) }, size);
        if !moved.is_null() {
            HELD.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}
