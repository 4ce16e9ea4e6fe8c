//! Memory of a thread for panels and sums, used again and again.

use core::cell::RefCell;

use crate::memory::{Line, room};

/// Panels and sums of a task, each from the beginning of a cache line.
#[derive(Default)]
pub(super) struct Scratch {
    left: Vec<Line>,
    right: Vec<Line>,
    sums: Vec<Line>,
}

impl Scratch {
    /// Room for as many numbers of each; they hold anything.
    pub(super) fn parts(
        &mut self,
        [left, right, sums]: [usize; 3],
    ) -> (&mut [u16], &mut [u16], &mut [f32]) {
        (room(&mut self.left, left), room(&mut self.right, right), room(&mut self.sums, sums))
    }
}

/// Runs a task with the scratch of this thread.
pub(super) fn with<R>(task: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(task)
}
