//! A product at its site, from its forward pass to its backward pass.

use core::any::Any;
use core::fmt;
use std::sync::Arc;

use burn_fp8_core::{Delayed, Gemm, Operand, Recipe, Scaling};

use super::place::Place;
use super::site::SiteState;
use super::slot::Slot;
use super::state::{DelayedState, Staged, State};
use super::step::Pass;
use super::thread;
use super::weight::{SharedWeight, WeightKey};
use crate::engine::Leaf;
use crate::engine::{Fp8Engine, ScalarOf, ScaleRule, ScaleRuleOf};
use crate::report::{Site, SiteStatus};
use crate::weights::{self, WeightId};

/// One product at a site, from its forward pass to its backward pass.
#[derive(Clone)]
pub(crate) struct SiteUse {
    state: DelayedState,
    pass: Arc<Pass>,
    place: Place,
    weight: Option<WeightId>,
    site: Site,
    gemm: Gemm,
    /// What is known of it.
    epoch: Option<u64>,
    generation: u64,
    delayed: Delayed,
    /// Whether the amaxes of the forward pass have been entered.
    has_entered: bool,
}

impl fmt::Debug for SiteUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteUse").field("site", &self.site).finish_non_exhaustive()
    }
}

impl DelayedState {
    /// The site of the tracked product that runs now. `None` unless the recipe is delayed.
    ///
    /// `weight` is the right operand, where that is a parameter.
    pub(crate) fn next_site(
        &self,
        gemm: Gemm,
        recipe: Recipe,
        weight: Option<Leaf>,
    ) -> Option<SiteUse> {
        let Scaling::Delayed(delayed) = recipe.scaling else { return None };
        let mut state = self.lock();
        let (pass, place, has_moved) = thread::advance(self, &mut state, true);
        let Found { site: found, weight, is_heir } = state.find(gemm, weight.as_ref(), place);
        let (status, epoch, index) = match found {
            Ok(found) => {
                let site = &mut state.sites[found];
                site.used(pass.step.id, weight, place, is_heir);
                let status = if has_moved { SiteStatus::Moved } else { SiteStatus::Known };
                (status, Some(site.epoch), site.index)
            }
            Err(status) => (status, None, place.index),
        };
        if let SiteStatus::Moved | SiteStatus::Mismatch = status {
            thread::unsettle(self);
        }
        if let Some(weight) = weight {
            thread::follow(self, weight);
        }
        let (site, generation) = (Site { index, status }, state.generation);
        let (state, has_entered) = (self.clone(), false);
        Some(SiteUse {
            state,
            pass,
            place,
            weight,
            site,
            gemm,
            epoch,
            generation,
            delayed,
            has_entered,
        })
    }

    /// Counts a tracked product that is not in FP8, so that those after it keep their sites.
    pub(crate) fn skip_site(&self, gemm: Gemm, recipe: Recipe, weight: Option<Leaf>) {
        if let Scaling::Delayed(_) = recipe.scaling {
            let mut state = self.lock();
            let (_, place, _) = thread::advance(self, &mut state, false);
            let Found { site, weight, .. } = state.find(gemm, weight.as_ref(), place);
            if let (Ok(_), Some(weight)) = (site, weight) {
                thread::follow(self, weight);
            }
        }
    }
}

/// What is known of a product.
struct Found {
    /// Its site, or why there is none.
    site: Result<usize, SiteStatus>,
    weight: Option<WeightId>,
    /// Whether its weight was taken for the successor of the site's.
    is_heir: bool,
}

impl State {
    /// Looks for the site of a product: for its weight at its place, or for what it may be the successor of there.
    fn find(&mut self, gemm: Gemm, leaf: Option<&Leaf>, place: Place) -> Found {
        let Gemm { k, n, .. } = gemm;
        let met = leaf.and_then(weights::find);
        let is_known = |site: &SiteState| met.is_some() && site.weight == met && site.fits(k, n);
        if let Some(found) = self.sites.iter().position(|site| is_known(site) && site.is_at(place))
        {
            return Found { site: Ok(found), weight: met, is_heir: false };
        }
        let here = |site: &SiteState| site.is_at(place) && site.is_free();
        let site = match self.sites.iter().position(|site| here(site) && site.fits(k, n)) {
            Some(found) => Ok(found),
            None if self.sites.iter().any(is_known) => Err(SiteStatus::Moved),
            None if self.sites.iter().any(here) => Err(SiteStatus::Mismatch),
            None => Err(SiteStatus::New),
        };
        let before = site.ok().and_then(|found| self.sites[found].weight);
        let weight = match (leaf, met, before) {
            (Some(leaf), None, Some(before)) => {
                weights::succeed(leaf, before);
                Some(before)
            }
            (Some(_), Some(met), Some(before)) => {
                self.sites.iter_mut().for_each(|site| site.rename(before, met));
                Some(met)
            }
            (Some(leaf), ..) => Some(weights::meet(leaf)),
            (None, ..) => None,
        };
        Found { site, weight, is_heir: before.is_some() }
    }

    fn known(&mut self, site: &SiteUse) -> Option<&mut SiteState> {
        let epoch = site.epoch?;
        self.sites.iter_mut().find(|known| known.epoch == epoch)
    }

    /// What the step of this product stages for its site.
    fn staged(&mut self, site: &SiteUse) -> &mut SiteState {
        let step = site.pass.step.id;
        let found = self.staged.iter().position(|staged| {
            staged.step == step
                && staged.site.fits(site.gemm.k, site.gemm.n)
                && staged.site.is_of(step, site.weight, site.place)
        });
        let found = found.unwrap_or_else(|| {
            self.epochs += 1;
            let slots = core::array::from_fn(|_| Slot::new(site.delayed.history_length));
            let new = SiteState::new(site.gemm, site.place.index, self.epochs, slots, self.now);
            self.staged.push(Staged { step, site: new });
            self.staged.len() - 1
        });
        let staged = &mut self.staged[found].site;
        staged.used(step, site.weight, site.place, false);
        staged
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
        let mut state = self.state.lock();
        let site = state.known(self).filter(|site| {
            self.site.status == SiteStatus::Known && site.is_recent(operand as usize)
        });
        match site {
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
        let is_known = self.site.status == SiteStatus::Known;
        let shared = state.known(self)?.shared.as_ref();
        shared.filter(|_| step.is_running() && is_known)?.get(step.id, key)
    }

    /// Keeps a quantized weight for the micro-batches to come, inside [`DelayedState::step`].
    pub(crate) fn share_weight<W: Any + Send>(&self, key: WeightKey, weight: W) {
        let mut state = self.state.lock();
        let step = &self.pass.step;
        if step.is_running()
            && self.site.status == SiteStatus::Known
            && let Some(site) = state.known(self)
        {
            site.shared = Some(SharedWeight::new(step.id, key, weight));
        }
    }

    /// Hands over the amaxes of the input and the weight, in the forward pass, where the site is known: they count whether or not a backward pass comes here.
    ///
    /// A new site waits for a backward pass, so that forward passes without one leave nothing behind.
    pub(crate) fn enter<B: Fp8Engine>(&mut self, [input, weight]: [Option<ScalarOf<B>>; 2]) {
        let step = &self.pass.step;
        let mut state = self.state.lock();
        if step.is_given_up() || self.generation != state.generation {
            return;
        }
        if let Some(site) = state.known(self) {
            let amaxes = [input, weight, None];
            site.observe::<B>(step.id, self.delayed.history_length, amaxes);
            self.has_entered = true;
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
        let amaxes = match (self.has_entered, amaxes) {
            (true, [_, _, output_grad]) => [None, None, output_grad],
            (false, amaxes) => amaxes,
        };
        let length = self.delayed.history_length;
        match (self.epoch, state.known(self)) {
            (_, Some(site)) => {
                site.used(step.id, self.weight, self.place, false);
                site.observe::<B>(step.id, length, amaxes);
            }
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
    use burn::backend::Flex;

    use super::*;

    /// A weight is found again under its node and recipe, inside its step, as long as the history stays, and nowhere else.
    #[test]
    fn weights_are_kept_for_their_step() {
        let state = DelayedState::new();
        let gemm = Gemm::matrix(16, 16, 16);
        let site = || {
            thread::restart(&state);
            state.next_site(gemm, Recipe::delayed(), None).expect("delayed")
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
