//! What is at a site, a product of the steps: the histories of its three operands, and how it is known.

use burn_fp8_core::Gemm;

use super::place::Place;
use super::slot::Slot;
use super::weight::SharedWeight;
use crate::engine::{Fp8Engine, ScalarOf};
use crate::weights::{self, WeightId};

/// A history whose newest entry is older than so many steps says little of a tensor as it is now: it begins anew. Critics of adversarial networks take
/// some five steps between those of the generator, whose histories stay.
pub(super) const OLD: u64 = 8;

/// What a state holds for a site.
pub(super) struct SiteState {
    pub(super) k: usize,
    pub(super) n: usize,
    /// Identifies what is at the site: another product there is another epoch.
    pub(super) epoch: u64,
    /// How many products come before it in a pass, as it was in the last step that had it.
    pub(super) index: usize,
    /// What it is known by, where a parameter is multiplied.
    pub(super) weight: Option<WeightId>,
    /// Where it stood in the last step that had it; nowhere if it was loaded.
    places: Vec<Place>,
    pub(super) slots: [Slot; 3],
    /// The length that the histories have after the next commit.
    pub(super) history_length: usize,
    /// When each history received its newest entry, in steps of the state.
    newest: [u64; 3],
    /// The weight of the running step, quantized, for its next micro-batch.
    pub(super) shared: Option<SharedWeight>,
    /// The steps that have it and are not committed.
    uses: Vec<Use>,
}

/// What a step says of a site.
struct Use {
    step: u64,
    weight: Option<WeightId>,
    places: Vec<Place>,
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
            places: vec![],
            slots,
            history_length,
            newest: [now; 3],
            shared: None,
            uses: vec![],
        }
    }

    /// Whether it is of products of this K and N.
    pub(super) fn fits(&self, k: usize, n: usize) -> bool {
        (self.k, self.n) == (k, n)
    }

    /// Whether it stood at this place.
    pub(super) fn is_at(&self, place: Place) -> bool {
        match &self.places[..] {
            [] => self.index == place.index,
            places => places.iter().any(|other| other.is(place)),
        }
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
        let index = self.uses.iter().position(|site| site.step == step).unwrap_or_else(|| {
            self.uses.push(Use { step, weight, places: vec![], is_heir });
            self.uses.len() - 1
        });
        let site = &mut self.uses[index];
        site.is_heir |= is_heir;
        if !site.places.iter().any(|other| other.is(place)) {
            site.places.push(place);
        }
    }

    /// What a step knows it by, and its first place in it.
    pub(super) fn in_step(&self, step: u64) -> Option<(Option<WeightId>, Place)> {
        let site = self.uses.iter().find(|site| site.step == step)?;
        let first = site.places.iter().min_by_key(|place| place.index)?;
        Some((site.weight, *first))
    }

    /// How many steps ago the newest entry came in: of the operand's history, or of any.
    pub(super) fn age(&self, operand: Option<usize>, now: u64) -> u64 {
        let newest = operand.map(|operand| self.newest[operand]);
        now - newest.unwrap_or(self.newest.into_iter().max().unwrap_or(now))
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

    /// Whether both are of one product, that of a weight or of several that are gone, at one place of a step.
    pub(super) fn is_twin(&self, other: &Self, step: u64) -> bool {
        let (Some((weight, place)), Some((of_other, other_place))) =
            (self.in_step(step), other.in_step(step))
        else {
            return false;
        };
        let gone = |weight: Option<WeightId>| weight.is_none_or(weights::is_gone);
        let same = weight == of_other || gone(weight) && gone(of_other);
        self.fits(other.k, other.n) && place.is(other_place) && same
    }

    /// Whether `new`, which a step has made, is this site again.
    pub(super) fn is_successor(&self, new: &Self) -> bool {
        let same_weight = self.weight.is_some() && self.weight == new.weight;
        self.fits(new.k, new.n)
            && (same_weight || self.is_free() && new.is_free() && self.meets(new))
    }

    /// Whether `new`, which a step has made, takes the place of this one.
    pub(super) fn gives_way(&self, new: &Self) -> bool {
        !self.fits(new.k, new.n) && self.is_free() && self.meets(new)
    }

    fn meets(&self, new: &Self) -> bool {
        new.places.iter().any(|place| self.is_at(*place))
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
        let mut changed = false;
        for (slot, newest) in self.slots.iter_mut().zip(&mut self.newest) {
            if slot.commit(step, self.history_length, now - *newest > OLD) {
                (changed, *newest) = (true, now);
            }
        }
        // Another scale from now on, for whichever step.
        if changed {
            self.shared = None;
        }
        self.forget_shared(step);
        let Some((weight, first)) = self.in_step(step) else { return false };
        self.index = first.index;
        self.weight = weight.or(self.weight);
        let found = self.uses.iter().position(|site| site.step == step);
        self.places = found.map(|found| self.uses.swap_remove(found).places).unwrap_or_default();
        true
    }

    pub(super) fn discard(&mut self, step: u64) {
        self.slots.iter_mut().for_each(|slot| slot.discard(step));
        self.uses.retain(|site| site.step != step);
        self.forget_shared(step);
    }

    /// Whether nothing will come to it again.
    pub(super) fn is_over(&self, now: u64) -> bool {
        let is_gone = |place: &Place| place.after.is_some_and(weights::is_gone);
        let unreachable = match self.weight {
            Some(weight) => weights::is_gone(weight),
            None => !self.places.is_empty() && self.places.iter().all(is_gone),
        };
        self.uses.is_empty() && self.age(None, now) > OLD && unreachable
    }

    fn forget_shared(&mut self, step: u64) {
        self.shared.take_if(|weight| weight.step == step);
    }
}
