//! A site: the place of a product in a step, and the histories of its three operands.

use core::any::Any;
use core::fmt;
use std::sync::Arc;

use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Delayed, Gemm, Operand, Recipe, Scaling};

use super::slot::Slot;
use super::step::Pass;
use super::thread::Place;
use super::{DelayedState, SiteRecord, State, thread};
use crate::matmul::{Fp8Matmul, ScaleRule};
use crate::scaling::Scalar;

/// The place of a product under delayed scaling, as a report shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// How many tracked products came before this one in its step.
    pub index: usize,
    /// Whether its histories could be used.
    pub status: SiteStatus,
}

/// Whether the histories of a site could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteStatus {
    /// They belong to a product of this K and N.
    Known,
    /// No product has been at this place before: current scaling.
    New,
    /// The product before at this place had another K or N: current scaling, and new histories.
    Mismatch,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            SiteStatus::Known => write!(f, "site {}", self.index),
            SiteStatus::New => write!(f, "site {} (new)", self.index),
            SiteStatus::Mismatch => write!(f, "site {} (other K×N than before: reset)", self.index),
        }
    }
}

/// What a state holds for a site.
pub(super) struct SiteState {
    k: usize,
    n: usize,
    epoch: u64,
    slots: [Slot; 3],
    /// The length that the histories have after the next commit.
    history_length: usize,
    /// The weight of the running step, quantized, for its next micro-batch.
    weight: Option<CachedWeight>,
}

/// What will be at a site once a step is committed.
pub(super) struct Staged {
    pub(super) step: u64,
    pub(super) index: usize,
    pub(super) site: SiteState,
}

/// A quantized weight. Its node names the tensor for good: whatever changes a parameter makes a new one.
struct CachedWeight {
    step: u64,
    node: u64,
    recipe: Recipe,
    /// What quantizing it gave: of a backend, which a state does not have as a parameter.
    quantized: Box<dyn Any + Send>,
}

impl SiteState {
    fn new(k: usize, n: usize, epoch: u64, history_length: usize) -> Self {
        let slots = core::array::from_fn(|_| Slot::new(history_length));
        Self { k, n, epoch, slots, history_length, weight: None }
    }

    pub(super) fn from_record(record: SiteRecord, epoch: u64) -> Self {
        let SiteRecord { index: _, k, n, input, weight, output_grad } = record;
        let history_length = input.entries().len();
        let slots = [input, weight, output_grad].map(Slot::from_history);
        Self { k, n, epoch, slots, history_length, weight: None }
    }

    pub(super) fn export(&self, index: usize) -> SiteRecord {
        let [input, weight, output_grad] = core::array::from_fn(|i| self.slots[i].export());
        SiteRecord { index, k: self.k, n: self.n, input, weight, output_grad }
    }

    /// Whether both are of products of one K and N.
    pub(super) fn fits(&self, other: &Self) -> bool {
        (self.k, self.n) == (other.k, other.n)
    }

    fn observe<B: Fp8Matmul>(
        &mut self,
        step: u64,
        history_length: usize,
        amaxes: [Option<Scalar<B>>; 3],
    ) {
        self.history_length = history_length;
        for (slot, amax) in self.slots.iter_mut().zip(amaxes) {
            if let Some(amax) = amax {
                slot.observe::<B>(step, amax);
            }
        }
    }

    pub(super) fn commit(&mut self, step: u64) {
        let mut changed = false;
        for slot in &mut self.slots {
            changed |= slot.commit(step, self.history_length);
        }
        // Another scale from now on, for whichever step.
        if changed {
            self.weight = None;
        }
        self.forget_weight(step);
    }

    pub(super) fn discard(&mut self, step: u64) {
        self.slots.iter_mut().for_each(|slot| slot.discard(step));
        self.forget_weight(step);
    }

    fn forget_weight(&mut self, step: u64) {
        self.weight.take_if(|weight| weight.step == step);
    }
}

/// One product at a site, from its forward pass to its backward pass.
#[derive(Clone)]
pub(crate) struct SiteUse {
    state: DelayedState,
    pass: Arc<Pass>,
    site: Site,
    k: usize,
    n: usize,
    /// What was at the site, where the product fits it.
    epoch: Option<u64>,
    generation: u64,
    delayed: Delayed,
}

impl fmt::Debug for SiteUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteUse").field("site", &self.site).finish_non_exhaustive()
    }
}

impl DelayedState {
    /// The site of the tracked product that runs now. `None` unless the recipe is delayed.
    pub(crate) fn next_site(&self, gemm: Gemm, recipe: Recipe) -> Option<SiteUse> {
        let Scaling::Delayed(delayed) = recipe.scaling else { return None };
        let Gemm { k, n, .. } = gemm;
        let state = self.lock();
        let (pass, index) = thread::advance(self, &state, Place::Site);
        let (status, epoch) = match state.sites.get(&index) {
            Some(site) if (site.k, site.n) == (k, n) => (SiteStatus::Known, Some(site.epoch)),
            Some(_) => (SiteStatus::Mismatch, None),
            None => (SiteStatus::New, None),
        };
        let site = Site { index, status };
        let generation = state.generation;
        Some(SiteUse { state: self.clone(), pass, site, k, n, epoch, generation, delayed })
    }

    /// Counts a tracked product that is not in FP8, so that those after it keep their sites.
    pub(crate) fn skip_site(&self, recipe: Recipe) {
        if let Scaling::Delayed(_) = recipe.scaling {
            let state = self.lock();
            thread::advance(self, &state, Place::Skipped);
        }
    }
}

impl State {
    fn known(&mut self, site: &SiteUse) -> Option<&mut SiteState> {
        let epoch = site.epoch?;
        self.sites.get_mut(&site.site.index).filter(|known| known.epoch == epoch)
    }

    /// What the step of this product stages for its site.
    fn staged(&mut self, site: &SiteUse) -> &mut SiteState {
        let (step, index) = (site.pass.step.id, site.site.index);
        let found = self.staged.iter().position(|staged| {
            let fits = (staged.site.k, staged.site.n) == (site.k, site.n);
            (staged.step, staged.index) == (step, index) && fits
        });
        let found = found.unwrap_or_else(|| {
            self.epochs += 1;
            let new = SiteState::new(site.k, site.n, self.epochs, site.delayed.history_length);
            self.staged.push(Staged { step, index, site: new });
            self.staged.len() - 1
        });
        &mut self.staged[found].site
    }
}

impl SiteUse {
    /// The place and whether it is known.
    pub(crate) fn site(&self) -> Site {
        self.site
    }

    /// How the scale of an operand is chosen.
    pub(crate) fn rule<B: Fp8Matmul>(
        &self,
        operand: Operand,
        recipe: Recipe,
        device: &B::Device,
    ) -> ScaleRule<B> {
        match self.state.lock().known(self) {
            Some(site) => {
                let amax = site.slots[operand as usize].amax::<B>(self.delayed, device);
                ScaleRule::Delayed(amax, recipe)
            }
            None => ScaleRule::Current(recipe),
        }
    }

    /// The weight, if an earlier micro-batch of the running step has quantized this very tensor.
    ///
    /// Exact: it is forgotten when the history changes, so by the same recipe the same tensor gets the same scale and the same
    /// codes.
    pub(crate) fn cached_weight<W: Any + Clone>(&self, node: u64, recipe: Recipe) -> Option<W> {
        let step = &self.pass.step;
        let mut state = self.state.lock();
        let cached = state.known(self)?.weight.as_ref()?;
        let same = (cached.step, cached.node, cached.recipe) == (step.id, node, recipe);
        cached.quantized.downcast_ref().filter(|_| same && step.is_running()).cloned()
    }

    /// Keeps a quantized weight for the micro-batches to come, inside [`DelayedState::step`].
    pub(crate) fn cache_weight<W: Any + Send>(&self, node: u64, recipe: Recipe, weight: W) {
        let mut state = self.state.lock();
        let step = &self.pass.step;
        if step.is_running()
            && let Some(site) = state.known(self)
        {
            let quantized = Box::new(weight);
            site.weight = Some(CachedWeight { step: step.id, node, recipe, quantized });
        }
    }

    /// Hands over the amaxes of the input, the weight and the output gradient, when the backward pass has come here.
    pub(crate) fn deposit<B: Fp8Matmul>(&self, amaxes: [Option<Scalar<B>>; 3]) {
        self.pass.end();
        let step = &self.pass.step;
        let mut state = self.state.lock();
        if step.is_given_up() || self.generation != state.generation {
            return;
        }
        let length = self.delayed.history_length;
        match (self.epoch, state.known(self)) {
            (_, Some(site)) => site.observe::<B>(step.id, length, amaxes),
            (None, None) => state.staged(self).observe::<B>(step.id, length, amaxes),
            // Something else has come to the site since.
            (Some(_), None) => {}
        }
        // A step that has ended already takes late passes as steps of their own.
        if !step.is_running() {
            thread::reached(&self.state, step);
        }
    }
}

/// The larger of two amaxes on the device. Shape `[1]`, no NaN.
pub(super) fn larger<B: Fp8Matmul>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    B::float_max(B::float_cat(vec![a, b], 0))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;

    use super::*;

    /// A weight is found again under its node and recipe, inside its step, as long as the history stays, and nowhere else.
    #[test]
    fn weights_are_kept_for_their_step() {
        let state = DelayedState::new();
        let gemm = Gemm::matrix(16, 16, 16);
        let site = || {
            thread::restart(&state);
            state.next_site(gemm, Recipe::delayed()).expect("delayed")
        };
        let deposit = || {
            let amaxes = [(); 3].map(|()| Some(Scalar::<Flex>::Host(1.0)));
            thread::backward(|| site().deposit(amaxes));
        };
        let found =
            |site: &SiteUse, node, recipe| site.cached_weight(node, recipe) == Some("codes");
        let (recipe, other) = (Recipe::delayed(), Recipe::delayed().with_margin(4));
        deposit();
        let outside = site();
        outside.cache_weight(7, recipe, "codes");
        assert!(!found(&outside, 7, recipe));
        state.step(|| {
            let first = site();
            first.cache_weight(7, recipe, "codes");
            let again = site();
            assert!(found(&again, 7, recipe));
            assert!(!found(&again, 8, recipe));
            assert!(!found(&again, 7, other));
            // A step of another thread changes the history.
            std::thread::scope(|scope| {
                scope.spawn(|| state.step(deposit));
            });
            assert!(!found(&again, 7, recipe));
        });
        state.step(|| assert!(!found(&site(), 7, recipe)));
    }
}
