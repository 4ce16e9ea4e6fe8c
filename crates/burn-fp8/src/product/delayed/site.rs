//! What is at a site, the place of a product in a step: the histories of its three operands.

use super::slot::Slot;
use super::weight::SharedWeight;
use crate::engine::{Fp8Engine, ScalarOf};

/// What a state holds for a site.
pub(super) struct SiteState {
    pub(super) k: usize,
    pub(super) n: usize,
    /// Identifies what is at the site: another product there is another epoch.
    pub(super) epoch: u64,
    pub(super) slots: [Slot; 3],
    /// The length that the histories have after the next commit.
    pub(super) history_length: usize,
    /// The weight of the running step, quantized, for its next micro-batch.
    pub(super) weight: Option<SharedWeight>,
}

impl SiteState {
    pub(super) fn new(k: usize, n: usize, epoch: u64, history_length: usize) -> Self {
        let slots = core::array::from_fn(|_| Slot::new(history_length));
        Self { k, n, epoch, slots, history_length, weight: None }
    }

    /// Whether both are of products of one K and N.
    pub(super) fn fits(&self, other: &Self) -> bool {
        (self.k, self.n) == (other.k, other.n)
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
