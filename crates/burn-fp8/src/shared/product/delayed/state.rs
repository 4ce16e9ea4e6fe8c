//! What a [`DelayedState`] holds.
//!
//! ```text
//! forward:  state.next_site()  → scales from the site's histories
//!           site.enter()       → the amaxes measured on the way, where the site is known
//! backward: site.deposit()     → the amax of the output gradient, and where the site is new all three; combined by maximum
//! end of the step: commit      → one entry in each history that received something
//!
//! Nothing that a step does is seen by others before it is committed: a step that is given up leaves no trace.
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn_fp8_core::peers::{PeerError, SharedPeers};

use super::site::SiteState;
use super::step::{Outcome, Step};

/// The amax histories of delayed scaling, for the products of one model.
///
/// Nothing of it is in the model. A product of a parameter, its *weight*, is known by it and by the product right before, so that a weight may be used in
/// several places. That holds as long as the optimizer is one of Burn's, or takes the parameter out of the graph (`inner`) and puts its successor there
/// (`from_inner`) right after. Any other product is known by its place: what came before it, and its K and N. So is every product on Burn 0.22, which does not
/// tell what is a parameter. What is known is called a *site*.
///
/// A step ends with the `backward` that reaches products of its pass: every history of an operand that the pass has
/// quantized then receives one new entry, whether or not that `backward` has come to its product. Other histories stay as they are.
///
/// A handle; clones share the state. Each thread has one of its own by default. Several models on one thread, or one
/// model on several threads, are told apart by [`scope`](Self::scope). Steps of several forward and backward passes, and
/// steps that may fail half-way, belong in [`step`](Self::step).
///
/// Only tracked products of `Fp8Backend<Autodiff<B>>` have sites. Validation (`model.valid()`), inference, and
/// `Autodiff<Fp8Backend<B>>` use current scaling. So does a product
/// - that is new, or that no `backward` has reached yet,
/// - whose history holds nothing but zeros, or has received nothing in more than eight steps of the product: then it begins anew,
/// - before which another product stands than before, and all that follow it in the pass, since their inputs may have changed,
/// - whose K or N is another than before at its place: the site begins anew with it.
///
/// A site that no step has had for 64 steps is forgotten.
///
/// The report says which. Products that the filter or [`high_precision`](crate::high_precision) keeps out of FP8 are counted all the same, so that a small
/// last batch moves nothing.
///
/// Outside of [`step`](Self::step), a tracked forward pass whose `backward` never runs is part of the next one: its amaxes count there. Evaluate with
/// `model.valid()`.
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
    /// The passes that are steps by themselves, as long as something of them is there.
    pub(super) passes: Vec<(u64, Weak<Step>)>,
    /// In ascending order of their indexes.
    pub(super) sites: Vec<SiteState>,
    /// How many steps have been committed.
    pub(super) now: u64,
    /// New sites, until their step is committed.
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
        let staged = staged.map(|staged| &mut staged.site);
        let mut sites: Vec<_> = (self.sites.iter_mut().chain(staged))
            .filter_map(|site| Some((site.index_in(step)?, site)))
            .collect();
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
        self.now += 1;
        let staged = self.staged.extract_if(.., |staged| staged.step == step);
        let mut staged: Vec<_> = staged.map(|staged| staged.site).collect();
        staged.sort_by_key(|site| site.index_in(step));
        let (mut new, mut same) = (Vec::<SiteState>::new(), vec![]);
        for mut site in staged {
            same.iter().for_each(|(from, to)| site.rename(*from, *to));
            // Copies of a layer that came and went, on other threads, say, are one, and what follows them is as well.
            match new.iter_mut().find(|other| other.is_twin(&site, step)) {
                Some(other) => {
                    other.merge(step, &site);
                    same.extend(site.weight_in(step).zip(other.weight_in(step)));
                }
                None => new.push(site),
            }
        }
        let mut latest = BTreeSet::new();
        for site in self.sites.iter_mut().chain(&mut new) {
            if site.commit(step, self.now) {
                latest.insert(site.epoch);
            }
        }
        for site in new {
            // Another step may have been faster; what fits stays.
            if !self.sites.iter().any(|known| known.is_successor(&site)) {
                let is_late = |known: &SiteState| !latest.contains(&known.epoch);
                self.sites.retain(|known| !(is_late(known) && known.gives_way(&site)));
                self.sites.push(site);
            }
        }
        self.sites.retain(|site| !site.is_over(self.now));
        self.number(&latest);
        self.forget_passes();
    }

    /// Gives each site an index of its own: those of the last step theirs, others what is left.
    fn number(&mut self, latest: &BTreeSet<u64>) {
        let is_late = |site: &SiteState| !latest.contains(&site.epoch);
        self.sites.sort_by_key(|site| (is_late(site), site.index, site.epoch));
        let mut taken = BTreeSet::new();
        for site in &mut self.sites {
            if !taken.insert(site.index) {
                site.index = taken.last().map_or(0, |last| last + 1);
                taken.insert(site.index);
            }
        }
        self.sites.sort_by_key(|site| site.index);
    }

    /// Forgets what passes have entered that nothing can end any more.
    fn forget_passes(&mut self) {
        for (step, _) in self.passes.extract_if(.., |(_, pass)| pass.strong_count() == 0) {
            self.sites.iter_mut().for_each(|site| site.discard(step));
        }
    }

    /// Forgets what a step has deposited.
    fn discard(&mut self, step: u64) {
        self.sites.iter_mut().for_each(|site| site.discard(step));
        self.staged.retain(|staged| staged.step != step);
        self.forget_passes();
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
