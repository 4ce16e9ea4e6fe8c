//! What a [`DelayedState`] holds.
//!
//! ```text
//! forward:  state.next_site()  → scales from the site's histories, amaxes measured on the way, kept in the graph
//! backward: site.deposit()     → the amaxes of the products that the graph reached, combined by maximum
//! end of the step: commit      → one entry in each history that received something
//!
//! Nothing that a step does is seen by others before it is committed: a step that is given up leaves no trace.
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::site::SiteState;
use super::step::{Outcome, Step};

/// The amax histories of delayed scaling, for the products of one model.
///
/// Nothing of it is in the model: a product is recognized by its place, its *site*: it is the n-th tracked product since the pass
/// began, with its K and N. A pass begins when the one before has ended, and ends with the `backward` that reaches its products:
/// every history reached then receives one new entry. Histories that were not reached stay as they are.
///
/// A handle; clones share the state. Each thread has one of its own by default. Several models on one thread, or one
/// model on several threads, are told apart by [`scope`](Self::scope). Steps of several forward and backward passes, and
/// steps that may fail half-way, belong in [`step`](Self::step).
///
/// Only tracked products of `Fp8Backend<Autodiff<B>>` have sites. Validation (`model.valid()`), inference, and
/// `Autodiff<Fp8Backend<B>>` use current scaling. So does a product whose history holds nothing but zeros, such as the first
/// one at its site, and one that does not fit its site: the report says so, and the site starts anew with it. Products that
/// the filter or [`high_precision`](crate::high_precision) keeps out of FP8 are counted all the same, so that a small last batch
/// moves nothing.
///
/// Outside of [`step`](Self::step), a tracked forward pass whose `backward` never runs counts as the beginning of the next one, whose
/// products it shifts to other sites. Evaluate with `model.valid()`, or run each step in `step`.
///
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/delayed_state.md"))]
#[derive(Clone)]
pub struct DelayedState {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    /// Tells states apart, also after one has been dropped.
    pub(super) id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The calls of [`DelayedState::step`] that are running.
    pub(super) open: Vec<Arc<Step>>,
    pub(super) sites: BTreeMap<usize, SiteState>,
    /// Sites of products that did not fit theirs, until their step is committed.
    pub(super) staged: Vec<Staged>,
    /// Identifies what is at a site: amaxes for what was there before are dropped.
    pub(super) epochs: u64,
    /// How often everything has been forgotten: amaxes from before are dropped.
    pub(super) generation: u64,
}

/// What will be at a site once a step is committed.
pub(super) struct Staged {
    pub(super) step: u64,
    pub(super) index: usize,
    pub(super) site: SiteState,
}

impl DelayedState {
    /// A state that has seen nothing.
    pub fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::new(Shared { id, state: Mutex::default() }) }
    }

    /// Forgets everything. Amaxes of products that have run already are dropped.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever panics inside, the histories are those before or after an assignment.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn clear(&mut self) {
        self.sites.clear();
        self.staged.clear();
        self.generation += 1;
    }

    /// Enters what a step has deposited.
    fn commit(&mut self, step: u64) {
        self.sites.values_mut().for_each(|site| site.commit(step));
        let staged = self.staged.extract_if(.., |staged| staged.step == step);
        for Staged { index, mut site, .. } in staged {
            site.commit(step);
            // Another step may have been faster; what fits stays.
            let fits = self.sites.get(&index).is_some_and(|known| known.fits(&site));
            if !fits {
                self.sites.insert(index, site);
            }
        }
    }

    /// Forgets what a step has deposited.
    fn discard(&mut self, step: u64) {
        self.sites.values_mut().for_each(|site| site.discard(step));
        self.staged.retain(|staged| staged.step != step);
    }

    pub(super) fn end(&mut self, step: &Step, outcome: Outcome) {
        match outcome {
            Outcome::Completed => self.commit(step.id),
            Outcome::GivenUp => self.discard(step.id),
        }
    }
}

impl Default for DelayedState {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DelayedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("DelayedState")
            .field("id", &self.shared.id)
            .field("sites", &state.sites.len())
            .finish()
    }
}
