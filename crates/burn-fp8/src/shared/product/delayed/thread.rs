//! What a thread knows of states: the one installed, the running steps, the site of the next product in each state, and the steps
//! that the running backward pass has reached.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use super::place::Place;
use super::state::{DelayedState, Shared, State};
use super::step::{Outcome, Pass, Step};
use crate::config::scope::{innermost, within};
use crate::weights::WeightId;

/// The place of the next product of this thread.
struct Cursor {
    state: Weak<Shared>,
    pass: Arc<Pass>,
    place: Place,
    /// Whether a product of the pass has a site, which tells when the pass ends.
    has_site: bool,
    /// Whether a product of the pass stands where it did not stand before.
    has_moved: bool,
}

/// So many cursors are kept before those of states that are gone are looked for.
const SOME_CURSORS: usize = 64;

thread_local! {
    static OWN: DelayedState = DelayedState::new();
    static SCOPES: RefCell<Vec<DelayedState>> = const { RefCell::new(Vec::new()) };
    static STEPS: RefCell<Vec<(u64, Arc<Step>)>> = const { RefCell::new(Vec::new()) };
    static CURSORS: RefCell<Vec<Cursor>> = const { RefCell::new(Vec::new()) };
    static BACKWARD: Cell<usize> = const { Cell::new(0) };
    static REACHED: RefCell<Vec<(DelayedState, Arc<Step>)>> = const { RefCell::new(Vec::new()) };
}

/// The state of the innermost scope, else that of the thread.
pub(crate) fn current() -> DelayedState {
    innermost(&SCOPES).unwrap_or_else(|| OWN.with(Clone::clone))
}

pub(super) fn enter<R>(state: &DelayedState, f: impl FnOnce() -> R) -> R {
    within(&SCOPES, state.clone(), f).0
}

/// The step of this state that runs on this thread.
pub(super) fn running_step(state: &DelayedState) -> Option<Arc<Step>> {
    STEPS.with_borrow(|steps| {
        let found = steps.iter().find(|(id, _)| *id == state.shared.id);
        found.map(|(_, step)| step.clone())
    })
}

/// Begins a step on this thread: its next product is the first one of a pass.
pub(super) fn begin_step(state: &DelayedState, step: &Arc<Step>) {
    STEPS.with_borrow_mut(|steps| steps.push((state.shared.id, step.clone())));
    restart(state);
}

/// Ends the step of this state on this thread.
pub(super) fn end_step(state: &DelayedState) {
    STEPS.with_borrow_mut(|steps| steps.retain(|(id, _)| *id != state.shared.id));
    restart(state);
}

/// Makes the next product of this thread the first one of a pass.
pub(super) fn restart(state: &DelayedState) {
    let shared = Arc::as_ptr(&state.shared);
    CURSORS.with_borrow_mut(|cursors| cursors.retain(|cursor| cursor.state.as_ptr() != shared));
}

/// The pass that a tracked product of this thread belongs to, its place there, and whether one before it has moved.
///
/// A product that is not in FP8 has no site, and takes a place all the same.
pub(super) fn advance(
    state: &DelayedState,
    locked: &mut State,
    has_site: bool,
) -> (Arc<Pass>, Place, bool) {
    let mut begin = || {
        let step = running_step(state).or_else(|| match &locked.open[..] {
            [step] => Some(step.clone()),
            _ => None,
        });
        Arc::new(Pass::of(step.unwrap_or_else(|| {
            let step = Arc::new(Step::of_one_pass());
            locked.passes.push((step.id, Arc::downgrade(&step)));
            step
        })))
    };
    with_cursor(state, |cursors, found| {
        let index = found.unwrap_or_else(|| {
            if cursors.len() >= SOME_CURSORS {
                cursors.retain(|cursor| cursor.state.strong_count() > 0);
            }
            let (state, pass) = (Arc::downgrade(&state.shared), begin());
            let (place, has_site, has_moved) = (Place::FIRST, false, false);
            cursors.push(Cursor { state, pass, place, has_site, has_moved });
            cursors.len() - 1
        });
        let cursor = &mut cursors[index];
        if cursor.pass.is_over() {
            (cursor.pass, cursor.place) = (begin(), Place::FIRST);
            (cursor.has_site, cursor.has_moved) = (false, false);
        }
        cursor.has_site |= has_site;
        let place = cursor.place;
        cursor.place = place.next();
        (cursor.pass.clone(), place, cursor.has_moved)
    })
}

/// The products that follow on this thread in the pass have other inputs than before, maybe.
pub(super) fn unsettle(state: &DelayedState) {
    with_cursor(state, |cursors, found| {
        if let Some(index) = found {
            cursors[index].has_moved = true;
        }
    });
}

/// From here on, places on this thread count from this weight.
pub(super) fn follow(state: &DelayedState, weight: WeightId) {
    with_cursor(state, |cursors, found| {
        if let Some(index) = found {
            let place = &mut cursors[index].place;
            *place = Place { after: Some(weight), offset: 1, ..*place };
        }
    });
}

fn with_cursor<R>(state: &DelayedState, f: impl FnOnce(&mut Vec<Cursor>, Option<usize>) -> R) -> R {
    let shared = Arc::as_ptr(&state.shared);
    CURSORS.with_borrow_mut(|cursors| {
        let found = cursors.iter().position(|cursor| cursor.state.as_ptr() == shared);
        f(cursors, found)
    })
}

/// Panics where nothing would end the steps that the running backward pass reaches: the histories would stay as they are, and nobody would notice.
pub(super) fn require_an_end() {
    assert!(
        BACKWARD.get() > 0,
        "delayed scaling has to know where a backward pass ends: call burn_fp8_next::ops::backward(loss) in place of loss.backward(), or run the \
         whole step inside DelayedState::step"
    );
}

/// Notes that the running backward pass has deposited something that its end commits.
pub(super) fn reached(state: &DelayedState, step: &Arc<Step>) {
    REACHED.with_borrow_mut(|reached| {
        if !reached.iter().any(|(_, other)| other.id == step.id) {
            reached.push((state.clone(), step.clone()));
        }
    });
}

/// Runs a backward pass and ends the steps that it reaches and that consist of it alone; where it panics, they are given up.
pub(crate) fn backward<R>(f: impl FnOnce() -> R) -> R {
    let mut running = RunningBackward { outcome: Outcome::GivenUp };
    BACKWARD.set(BACKWARD.get() + 1);
    let result = f();
    running.outcome = Outcome::Completed;
    result
}

struct RunningBackward {
    outcome: Outcome,
}

impl Drop for RunningBackward {
    fn drop(&mut self) {
        BACKWARD.set(BACKWARD.get() - 1);
        for (state, step) in REACHED.with_borrow_mut(core::mem::take) {
            state.lock().end(&step, self.outcome);
        }
        CURSORS.with_borrow_mut(|cursors| match self.outcome {
            // A pass of which nothing was in FP8 has no product that could tell that it is over.
            Outcome::Completed => cursors.retain(|cursor| cursor.has_site),
            // It may have panicked before it came to a product that would tell which pass this was.
            Outcome::GivenUp => cursors.clear(),
        });
    }
}
