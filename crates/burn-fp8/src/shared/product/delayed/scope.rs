//! States in force on a thread, and their steps.

use std::sync::Arc;

use super::state::DelayedState;
use super::step::{Outcome, Step};
use super::thread;

impl DelayedState {
    /// The state that a product on this thread would use now: that of the innermost scope, else the thread's own.
    pub fn current() -> Self {
        thread::current()
    }

    /// Runs `f` with this state on this thread and returns its result.
    ///
    /// Scopes nest; the innermost one holds. `backward` may run outside, and on another thread: a product keeps the state that
    /// it found.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        thread::enter(self, f)
    }

    /// Runs `f` as one step, with this state on this thread, and returns its result.
    ///
    /// The passes inside (micro-batches) see the same histories; their amaxes are combined by maximum, and each history
    /// receives one entry when `f` returns. A weight that they share is quantized once. If `f` panics, nothing is entered, and
    /// the next step finds its sites unshifted.
    ///
    /// Passes of other threads take part if they find this state in a [`scope`](Self::scope) while this is its only running step.
    /// Steps of different threads that overlap are steps of their own. A step inside a step is part of it.
    pub fn step<R>(&self, f: impl FnOnce() -> R) -> R {
        if thread::running_step(self).is_some() {
            return self.scope(f);
        }
        let step = Arc::new(Step::running());
        self.lock().open.push(step.clone());
        let running = RunningStep { state: self, step, outcome: Outcome::GivenUp };
        thread::begin_step(self, &running.step);
        let result = self.scope(f);
        running.complete();
        result
    }
}

/// A running [`DelayedState::step`]; given up where its closure panics.
struct RunningStep<'a> {
    state: &'a DelayedState,
    step: Arc<Step>,
    outcome: Outcome,
}

impl RunningStep<'_> {
    fn complete(mut self) {
        self.outcome = Outcome::Completed;
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        thread::end_step(self.state);
        let mut state = self.state.lock();
        state.open.retain(|step| step.id != self.step.id);
        self.step.end(self.outcome);
        state.end(&self.step, self.outcome);
    }
}
