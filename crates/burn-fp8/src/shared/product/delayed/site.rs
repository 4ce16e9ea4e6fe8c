//! What is at a site, a product of the steps: the histories of its three operands, and how it is known.

use burn_fp8_core::Gemm;

use super::place::Place;
use super::slot::Slot;
use super::weight::SharedWeight;
use crate::engine::{Fp8Engine, ScalarOf};
use crate::weights::{self, WeightId};

/// A history that has received nothing in so many steps of its product says little of a tensor as it is now: it begins anew. Critics of adversarial
/// networks take some five steps between those of the generator, whose histories stay.
pub(super) const OLD: u64 = 8;

/// A site that no step of the state has had for so long is forgotten. So many models may take turns.
const UNUSED: u64 = 64;

/// What a state holds for a site: a weight at a place.
pub(super) struct SiteState {
    pub(super) k: usize,
    pub(super) n: usize,
    /// Identifies what is at the site: another product there is another epoch.
    pub(super) epoch: u64,
    /// How many products come before it in a pass, as it was in the last step that had it.
    pub(super) index: usize,
    /// The parameter that is multiplied, where one is.
    pub(super) weight: Option<WeightId>,
    /// Where it stands; by its index alone if it was loaded from a file that does not tell.
    pub(super) place: Option<Place>,
    pub(super) slots: [Slot; 3],
    /// The length that the histories have after the next commit.
    pub(super) history_length: usize,
    /// How many steps have had it, and at which of them each history received its newest entry.
    steps: u64,
    newest: [u64; 3],
    /// The last step of the state that had it.
    last: u64,
    /// The weight of the running step, quantized, for its next micro-batch.
    pub(super) shared: Option<SharedWeight>,
    /// The steps that have it and are not committed.
    uses: Vec<Use>,
}

/// What a step says of a site.
struct Use {
    step: u64,
    index: usize,
    weight: Option<WeightId>,
    place: Place,
    /// Whether another weight than before was taken for its successor.
    is_heir: bool,
}

impl SiteState {
    pub(super) fn new(gemm: Gemm, index: usize, epoch: u64, slots: [Slot; 3], now: u64) -> Self {
        let history_length = slots[0].export().entries().len();
        Self {
            k: gemm.k,
            n: gemm.n,
            epoch,
            index,
            weight: None,
            place: None,
            slots,
            history_length,
            steps: 0,
            newest: [0; 3],
            last: now,
            shared: None,
            uses: vec![],
        }
    }

    /// Whether it is of products of this K and N.
    pub(super) fn fits(&self, k: usize, n: usize) -> bool {
        (self.k, self.n) == (k, n)
    }

    /// Whether it stands at this place.
    pub(super) fn is_at(&self, place: Place) -> bool {
        self.place.map_or(self.index == place.index, |own| own.is(place))
    }

    /// Whether a product at its place may be what it is of: its own weight is none, or gone, or has just got a successor.
    pub(super) fn is_free(&self) -> bool {
        self.weight.is_none_or(weights::is_gone) || self.uses.iter().any(|site| site.is_heir)
    }

    /// Notes that a step has it.
    pub(super) fn used(
        &mut self,
        step: u64,
        weight: Option<WeightId>,
        place: Place,
        is_heir: bool,
    ) {
        match self.uses.iter_mut().find(|site| site.step == step) {
            Some(site) => {
                site.is_heir |= is_heir;
                site.index = site.index.min(place.index);
            }
            None => self.uses.push(Use { step, index: place.index, weight, place, is_heir }),
        }
    }

    /// Its first index in a step.
    pub(super) fn index_in(&self, step: u64) -> Option<usize> {
        self.in_step(step).map(|site| site.index)
    }

    /// Its weight in a step.
    pub(super) fn weight_in(&self, step: u64) -> Option<WeightId> {
        self.in_step(step)?.weight
    }

    fn in_step(&self, step: u64) -> Option<&Use> {
        self.uses.iter().find(|site| site.step == step)
    }

    /// Whether a step has made it for this weight at this place.
    pub(super) fn is_of(&self, step: u64, weight: Option<WeightId>, place: Place) -> bool {
        self.in_step(step).is_some_and(|site| site.weight == weight && site.place.is(place))
    }

    /// Whether the history of an operand says what it is now.
    pub(super) fn is_recent(&self, operand: usize) -> bool {
        self.steps - self.newest[operand] <= OLD
    }

    pub(super) fn observe<B: Fp8Engine>(
        &mut self,
        step: u64,
        history_length: usize,
        amaxes: [Option<ScalarOf<B>>; 3],
    ) {
        self.history_length = history_length;
        for (slot, amax) in self.slots.iter_mut().zip(amaxes) {
            if let Some(amax) = amax {
                slot.observe::<B>(step, amax);
            }
        }
    }

    /// Whether both are of one product that a step has made twice: of several weights at one place that are gone, of copies on other threads, say.
    pub(super) fn is_twin(&self, other: &Self, step: u64) -> bool {
        let (Some(own), Some(of_other)) = (self.in_step(step), other.in_step(step)) else {
            return false;
        };
        let is_gone = |site: &Use| site.weight.is_none_or(weights::is_gone);
        let same = own.weight == of_other.weight || is_gone(own) && is_gone(of_other);
        self.fits(other.k, other.n) && own.place.is(of_other.place) && same
    }

    /// Whether `new`, which a step has made, is this site again.
    pub(super) fn is_successor(&self, new: &Self) -> bool {
        let same = self.weight == new.weight || self.is_free() && new.is_free();
        self.fits(new.k, new.n) && same && self.meets(new)
    }

    /// Whether `new`, which a step has made, takes the place of this one.
    pub(super) fn gives_way(&self, new: &Self) -> bool {
        !self.fits(new.k, new.n) && self.is_free() && self.meets(new)
    }

    fn meets(&self, new: &Self) -> bool {
        new.place.is_some_and(|place| self.is_at(place))
    }

    /// Takes in what another site has observed in a step.
    pub(super) fn merge(&mut self, step: u64, other: &Self) {
        for (slot, other) in self.slots.iter_mut().zip(&other.slots) {
            if let Some(amax) = other.observed(step) {
                slot.observe_on_host(step, amax);
            }
        }
    }

    /// Enters what a step has observed, in which the state's steps have come to `now`. Whether the step had the site.
    pub(super) fn commit(&mut self, step: u64, now: u64) -> bool {
        let found = self.uses.iter().position(|site| site.step == step);
        self.steps += u64::from(found.is_some());
        let mut changed = false;
        for (slot, newest) in self.slots.iter_mut().zip(&mut self.newest) {
            if slot.commit(step, self.history_length, self.steps - *newest > OLD) {
                (changed, *newest) = (true, self.steps);
            }
        }
        // Another scale from now on, for whichever step.
        if changed {
            self.shared = None;
        }
        self.forget_shared(step);
        let Some(found) = found else { return false };
        let Use { index, weight, place, .. } = self.uses.swap_remove(found);
        (self.index, self.place, self.last) = (index, Some(place), now);
        self.weight = weight.or(self.weight);
        true
    }

    pub(super) fn discard(&mut self, step: u64) {
        self.slots.iter_mut().for_each(|slot| slot.discard(step));
        self.uses.retain(|site| site.step != step);
        self.forget_shared(step);
    }

    /// Whether no step has had it for long.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.uses.is_empty() && now - self.last > UNUSED
    }

    /// Calls a weight otherwise.
    pub(super) fn rename(&mut self, from: WeightId, to: WeightId) {
        let rename = |weight: &mut Option<WeightId>| {
            if *weight == Some(from) {
                *weight = Some(to);
            }
        };
        rename(&mut self.weight);
        self.place.iter_mut().for_each(|place| rename(&mut place.after));
        for site in &mut self.uses {
            rename(&mut site.weight);
            rename(&mut site.place.after);
        }
    }

    fn forget_shared(&mut self, step: u64) {
        self.shared.take_if(|weight| weight.step == step);
    }
}
