//! What a thread knows of states: the one installed, the place of the next product in each, and those that the running backward
//! pass has reached.

use std::cell::RefCell;

use super::DelayedState;

/// The place of the next product of this thread.
#[derive(Clone, Copy)]
struct Cursor {
    state: u64,
    step: u64,
    next: usize,
}

/// Cursors kept per thread; that of the state used longest ago makes room.
const MAX_CURSORS: usize = 256;

thread_local! {
    static OWN: DelayedState = DelayedState::new();
    static SCOPES: RefCell<Vec<DelayedState>> = const { RefCell::new(Vec::new()) };
    static CURSORS: RefCell<Vec<Cursor>> = const { RefCell::new(Vec::new()) };
    static REACHED: RefCell<Vec<DelayedState>> = const { RefCell::new(Vec::new()) };
}

/// The state of the innermost scope, else that of the thread.
pub(crate) fn current() -> DelayedState {
    SCOPES.with_borrow(|scopes| scopes.last().cloned()).unwrap_or_else(|| OWN.with(Clone::clone))
}

/// Leaves a scope when dropped, so also when the scope's closure panics.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| {
            scopes.pop();
        });
    }
}

pub(super) fn enter<R>(state: &DelayedState, f: impl FnOnce() -> R) -> R {
    SCOPES.with_borrow_mut(|scopes| scopes.push(state.clone()));
    let _leave = Leave;
    f()
}

/// The step that the next product of this thread belongs to, and its place in it. `current` is the step of a pass that begins now.
pub(super) fn advance(state: u64, current: u64) -> (u64, usize) {
    CURSORS.with_borrow_mut(|cursors| {
        let found = cursors.iter().position(|cursor| cursor.state == state);
        let cursor = match found {
            Some(index) => cursors.remove(index),
            None => Cursor { state, step: current, next: 0 },
        };
        if cursors.len() == MAX_CURSORS {
            cursors.remove(0);
        }
        cursors.push(Cursor { next: cursor.next + 1, ..cursor });
        (cursor.step, cursor.next)
    })
}

/// Makes the next product of this thread the first one of a pass.
pub(super) fn restart(state: &DelayedState) {
    CURSORS.with_borrow_mut(|cursors| cursors.retain(|cursor| cursor.state != state.shared.id));
}

/// Notes that the running backward pass has reached a site of `state`.
pub(super) fn reached(state: &DelayedState) {
    REACHED.with_borrow_mut(|reached| {
        if !reached.iter().any(|other| other.shared.id == state.shared.id) {
            reached.push(state.clone());
        }
    });
}

/// Runs a backward pass and ends the steps of the states that it reaches; where it panics, they are given up.
pub(crate) fn backward<R>(f: impl FnOnce() -> R) -> R {
    let pass = Pass;
    let result = f();
    for state in take_reached() {
        state.backward_ended();
        restart(&state);
    }
    drop(pass);
    result
}

fn take_reached() -> Vec<DelayedState> {
    REACHED.with_borrow_mut(core::mem::take)
}

/// A running backward pass. Finds reached states when dropped only where the pass has panicked.
struct Pass;

impl Drop for Pass {
    fn drop(&mut self) {
        for state in take_reached() {
            state.give_up();
            restart(&state);
        }
    }
}
