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
use crate::peers::{PeerError, SharedPeers};

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
    /// Whose amaxes count as well.
    peers: Option<SharedPeers>,
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

    /// Shares the state with peers that train the same model on other data, each with a state of its own: when a step ends, its amaxes become the largest of all peers, in one message,
    /// before they enter the histories. So all have the same scales, bit for bit.
    ///
    /// Every peer must take the same steps, with the same products in them.
    ///
    /// # Panics
    /// Later, where a step ends and the peers have lost each other or have other products in it: see [`PeerError`].
    pub fn share(&self, peers: SharedPeers) {
        self.lock().peers = Some(peers);
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

    /// Makes the amaxes of a step those of all peers.
    fn reduce(&mut self, step: u64, peers: &SharedPeers) -> Result<(), PeerError> {
        let staged = self.staged.iter_mut().filter(|staged| staged.step == step);
        let staged = staged.map(|staged| (staged.index, &mut staged.site));
        let mut sites: Vec<_> =
            self.sites.iter_mut().map(|(index, site)| (*index, site)).chain(staged).collect();
        sites.sort_by_key(|(index, _)| *index);
        let (mut products, mut slots, mut amaxes) = (String::new(), vec![], vec![]);
        for (index, site) in sites {
            let (k, n) = (site.k, site.n);
            let observed = site.slots.each_ref().map(|slot| slot.observed(step));
            if observed == [None; 3] {
                continue;
            }
            let in_fp8 = observed.map(|amax| amax.is_some());
            products += &format!("product {index} of the step: K {k}, N {n}, in FP8 {in_fp8:?}\n");
            for (slot, amax) in site.slots.iter_mut().zip(observed) {
                if let Some(amax) = amax {
                    amaxes.push(amax);
                    slots.push(slot);
                }
            }
        }
        let largest = peers.maximum(&products, &amaxes)?;
        for (slot, amax) in slots.into_iter().zip(largest) {
            slot.observe_on_host(step, amax);
        }
        Ok(())
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
            Outcome::Completed => {
                if let Some(peers) = self.peers.clone().filter(|peers| peers.size() > 1) {
                    let reduced = self.reduce(step.id, &peers);
                    reduced.unwrap_or_else(|error| panic!("amaxes of delayed scaling: {error}"));
                }
                self.commit(step.id);
            }
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
