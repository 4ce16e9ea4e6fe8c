//! Steps, and the passes that they consist of.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What has deposits committed together.
pub(super) struct Step {
    pub(super) id: u64,
    kind: Kind,
    outcome: OnceLock<Outcome>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A call of [`DelayedState::step`](super::state::DelayedState::step).
    Called,
    /// A pass by itself, committed when its backward pass ends.
    OfOnePass,
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    Completed,
    GivenUp,
}

impl Step {
    fn new(kind: Kind) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self { id, kind, outcome: OnceLock::new() }
    }

    /// A call of [`DelayedState::step`](super::state::DelayedState::step) that begins.
    pub(super) fn running() -> Self {
        Self::new(Kind::Called)
    }

    /// The step of a pass by itself.
    pub(super) fn of_one_pass() -> Self {
        Self::new(Kind::OfOnePass)
    }

    /// Whether the end of a call will commit it.
    pub(super) fn is_running(&self) -> bool {
        self.kind == Kind::Called && self.outcome.get().is_none()
    }

    /// Whether it has been given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.outcome.get() == Some(&Outcome::GivenUp)
    }

    pub(super) fn end(&self, outcome: Outcome) {
        // Ends once.
        let _ = self.outcome.set(outcome);
    }
}

/// A forward pass with the backward pass that follows: what the products of a graph have in common.
pub(super) struct Pass {
    pub(super) step: Arc<Step>,
    ended: AtomicBool,
}

impl Pass {
    pub(super) fn of(step: Arc<Step>) -> Self {
        Self { step, ended: AtomicBool::new(false) }
    }

    /// A backward pass has reached one of its products, on whatever thread.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether the next product belongs to another pass.
    pub(super) fn is_over(&self) -> bool {
        let step_is_over = self.step.kind == Kind::Called && !self.step.is_running();
        self.ended.load(Ordering::Acquire) || step_is_over
    }
}
