//! The state of delayed scaling in the decorator: amax histories of the products of a model that knows nothing of them.
//!
//! ```text
//! forward:  state.next_site()  → scales from the site's histories, amaxes measured on the way, kept in the graph
//! backward: site.deposit()     → the amaxes of the products that the graph reached, combined by maximum
//! end of the step: commit      → one entry in each history that received something
//! ```

mod record;
mod site;
mod slot;
mod thread;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use record::{DelayedRecord, SiteRecord};
pub(crate) use site::{QuantizedWeight, SiteUse};
pub use site::{Site, SiteStatus};
pub(crate) use thread::{backward, current};

use site::SiteState;

/// The amax histories of delayed scaling, for the products of one model.
///
/// Nothing of it is in the model: a product is recognized by its place, the n-th tracked product since the step began, with
/// its K and N. A step begins when the one before has ended, and ends with the `backward` that reaches its products: every
/// history reached then receives one new entry. Histories that were not reached stay as they are.
///
/// A handle; clones share the state. Each thread has one of its own by default. Several models on one thread, or one
/// model on several threads, are told apart by [`scope`](Self::scope). Steps of several forward and backward passes, and
/// steps that may fail half-way, belong in [`step`](Self::step).
///
/// Only tracked products of `Fp8Backend<Autodiff<B>>` have histories. Validation (`model.valid()`), inference, and
/// `Autodiff<Fp8Backend<B>>` use current scaling. So does a product whose history holds nothing but zeros, such as the first
/// one at its place, and one that does not fit its place: that place starts anew, and the report says so.
///
/// Places count the tracked products that run in FP8. Where a change of the configuration, or of the model, moves products to other
/// places in the middle of a training, [`clear`](Self::clear) the state: K and N tell most strangers, not all.
///
/// Outside [`step`](Self::step), a tracked forward pass whose `backward` never runs counts as the beginning of the next one:
/// its products would shift the places of those that follow. Run such passes on `model.valid()`, or steps in `step`.
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
    /// The step that a pass beginning now belongs to.
    step: u64,
    /// Amaxes of earlier steps come from steps that were given up; they are dropped.
    valid_from: u64,
    /// How many calls of [`DelayedState::step`] are running.
    open: usize,
    sites: Vec<SiteState>,
    /// Identifies a site for as long as its signature holds.
    epochs: u64,
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
    /// Scopes nest; the innermost one holds. `backward` may run outside: a product keeps the state that it found.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        thread::enter(self, f)
    }

    /// Runs `f` as one step, with this state on this thread, and returns its result.
    ///
    /// The passes inside (micro-batches) see the same histories; their amaxes are combined by maximum, and each history
    /// receives one entry when `f` returns. A weight that they share is quantized once. If `f` panics, nothing is entered, and the next step finds its places unshifted.
    /// Steps of several threads that overlap end together. A step inside a step is part of it.
    pub fn step<R>(&self, f: impl FnOnce() -> R) -> R {
        thread::restart(self);
        self.lock().open += 1;
        let open = OpenStep { state: self, completed: false };
        let result = self.scope(f);
        open.complete();
        result
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.sites.clear();
        state.give_up();
        drop(state);
        thread::restart(self);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever panics inside, the histories are those before or after an assignment.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a backward pass that deposited something here.
    fn backward_ended(&self) {
        let mut state = self.lock();
        if state.open == 0 {
            state.commit();
        }
    }

    /// Forgets what the current step has deposited.
    fn give_up(&self) {
        self.lock().give_up();
    }
}

impl State {
    fn commit(&mut self) {
        self.sites.iter_mut().for_each(SiteState::commit);
        self.step += 1;
    }

    fn give_up(&mut self) {
        self.sites.iter_mut().for_each(SiteState::discard);
        self.step += 1;
        self.valid_from = self.step;
    }
}

/// A running [`DelayedState::step`]; dropped before it is completed where its closure panics.
struct OpenStep<'a> {
    state: &'a DelayedState,
    completed: bool,
}

impl OpenStep<'_> {
    fn complete(mut self) {
        self.completed = true;
    }
}

impl Drop for OpenStep<'_> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.open -= 1;
        match self.completed {
            true if state.open == 0 => state.commit(),
            true => {}
            false => state.give_up(),
        }
        drop(state);
        thread::restart(self.state);
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
            .field("step", &state.step)
            .field("sites", &state.sites.len())
            .finish()
    }
}
