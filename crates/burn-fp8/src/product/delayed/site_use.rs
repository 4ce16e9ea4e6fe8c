//! A product at its site, from its forward pass to its backward pass.

use core::any::Any;
use core::fmt;
use std::sync::Arc;

use burn_fp8_core::{Delayed, Gemm, Operand, Recipe, Scaling};

use super::site::SiteState;
use super::state::{DelayedState, Staged, State};
use super::step::Pass;
use super::thread::{self, Place};
use super::weight::{SharedWeight, WeightKey};
use crate::engine::{Fp8Engine, ScalarOf, ScaleRule, ScaleRuleOf};
use crate::report::{Site, SiteStatus};

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
    pub(crate) fn rule<B: Fp8Engine>(
        &self,
        operand: Operand,
        recipe: Recipe,
        device: &B::Device,
    ) -> ScaleRuleOf<B> {
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
    pub(crate) fn shared_weight<W: Any + Clone>(&self, key: &WeightKey) -> Option<W> {
        let step = &self.pass.step;
        let mut state = self.state.lock();
        state.known(self)?.weight.as_ref().filter(|_| step.is_running())?.get(step.id, key)
    }

    /// Keeps a quantized weight for the micro-batches to come, inside [`DelayedState::step`].
    pub(crate) fn share_weight<W: Any + Send>(&self, key: WeightKey, weight: W) {
        let mut state = self.state.lock();
        let step = &self.pass.step;
        if step.is_running()
            && let Some(site) = state.known(self)
        {
            site.weight = Some(SharedWeight::new(step.id, key, weight));
        }
    }

    /// Hands over the amaxes of the input, the weight and the output gradient, when the backward pass has come here.
    pub(crate) fn deposit<B: Fp8Engine>(&self, amaxes: [Option<ScalarOf<B>>; 3]) {
        self.pass.end();
        let step = &self.pass.step;
        if !step.is_running() && !step.is_given_up() {
            thread::require_an_end();
        }
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

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn_flex::Flex;

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
            let amaxes = [(); 3].map(|()| Some(ScalarOf::<Flex>::Host(1.0)));
            thread::backward(|| site().deposit::<Flex>(amaxes));
        };
        let key = |node, recipe| WeightKey { node, recipe };
        let found =
            |site: &SiteUse, node, recipe| site.shared_weight(&key(node, recipe)) == Some("codes");
        let (recipe, other) = (Recipe::delayed(), Recipe::delayed().with_margin(4));
        deposit();
        let outside = site();
        outside.share_weight(key(7, recipe), "codes");
        assert!(!found(&outside, 7, recipe));
        state.step(|| {
            let first = site();
            first.share_weight(key(7, recipe), "codes");
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
