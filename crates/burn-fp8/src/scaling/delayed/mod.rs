//! The state of delayed scaling in the decorator: amax histories of the products of a model that knows nothing of them.
//!
//! ```text
//! forward:  state.next_site()  → scales from the site's histories, amaxes measured on the way, kept in the graph
//! backward: site.deposit()     → the amaxes of the products that the graph reached, combined by maximum
//! end of the step: commit      → one entry in each history that received something
//!
//! Nothing that a step does is seen by others before it is committed: a step that is given up leaves no trace.
//! ```

mod record;
mod site;
mod slot;
mod step;
mod thread;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use record::{DelayedRecord, SiteRecord};
pub(crate) use site::SiteUse;
pub use site::{Site, SiteStatus};
pub(crate) use thread::{backward, current};

use site::{SiteState, Staged};
use step::{Outcome, Step};

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
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Recipe};
///
/// type B = Fp8Backend<Autodiff<Flex>>;
///
/// let device = Default::default();
/// let w = Tensor::<B, 2>::random([32, 32], Distribution::Default, &device).require_grad();
/// let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &device);
/// let state = DelayedState::new();
/// Fp8Config::default().with_recipe(Recipe::delayed()).scope(|| {
///     state.step(|| x.matmul(w).mean().backward());
/// });
/// let sites = state.export().sites;
/// assert_eq!((sites.len(), sites[0].k, sites[0].n), (1, 32, 32));
/// assert!(sites[0].input.entries()[0] > 0.0);
/// ```
#[derive(Clone)]
pub struct DelayedState {
    shared: Arc<Shared>,
}

struct Shared {
    /// Tells states apart, also after one has been dropped.
    id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The calls of [`DelayedState::step`] that are running.
    open: Vec<Arc<Step>>,
    sites: BTreeMap<usize, SiteState>,
    /// Sites of products that did not fit theirs, until their step is committed.
    staged: Vec<Staged>,
    /// Identifies what is at a site: amaxes for what was there before are dropped.
    epochs: u64,
    /// How often everything has been forgotten: amaxes from before are dropped.
    generation: u64,
}

impl DelayedState {
    /// A state that has seen nothing.
    pub fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::new(Shared { id, state: Mutex::default() }) }
    }

    /// The state that a product on this thread would use now: that of the innermost scope, else the thread's own.
    pub fn current() -> Self {
        current()
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

    /// Forgets everything. Amaxes of products that have run already are dropped.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.sites.clear();
        state.staged.clear();
        state.generation += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever panics inside, the histories are those before or after an assignment.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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

    fn end(&mut self, step: &Step, outcome: Outcome) {
        match outcome {
            Outcome::Completed => self.commit(step.id),
            Outcome::GivenUp => self.discard(step.id),
        }
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
