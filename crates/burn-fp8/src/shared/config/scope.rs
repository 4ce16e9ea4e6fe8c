//! What is in force on a thread while a closure runs.

use std::cell::RefCell;
use std::thread::LocalKey;

/// What the scopes of a thread have put in force, the innermost one last.
pub(crate) type Stack<T> = LocalKey<RefCell<Vec<T>>>;

/// What the innermost scope has put in force.
pub(crate) fn innermost<T: Clone + 'static>(stack: &'static Stack<T>) -> Option<T> {
    stack.with_borrow(|stack| stack.last().cloned())
}

/// Runs `f` with `value` in force. Returns the result, and what has become of the value; where `f` panics, the scope ends too.
pub(crate) fn within<T: 'static, R>(
    stack: &'static Stack<T>,
    value: T,
    f: impl FnOnce() -> R,
) -> (R, T) {
    /// Leaves the scope when dropped.
    struct Leave<T: 'static>(&'static Stack<T>);

    impl<T> Leave<T> {
        /// The value is dropped outside of the stack: it may look at it.
        fn pop(&self) -> Option<T> {
            self.0.with_borrow_mut(Vec::pop)
        }
    }

    impl<T> Drop for Leave<T> {
        fn drop(&mut self) {
            self.pop();
        }
    }

    stack.with_borrow_mut(|stack| stack.push(value));
    let leave = Leave(stack);
    let result = f();
    let value = leave.pop().expect("scopes inside have ended");
    std::mem::forget(leave);
    (result, value)
}
