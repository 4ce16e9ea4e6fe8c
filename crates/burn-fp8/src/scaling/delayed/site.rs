//! A site: the place of a product in a step, and the histories of its three operands.

use core::any::Any;
use core::fmt;

use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Delayed, Gemm, Operand, Recipe, Scaling};

use super::slot::Slot;
use super::{DelayedState, SiteRecord, thread};
use crate::matmul::{Fp8Matmul, SavedCodes, ScaleRule};
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
    /// A new one for every signature: amaxes of another one are dropped.
    epoch: u64,
    slots: [Slot; 3],
    /// The weight of the running step, quantized, for its next micro-batch.
    weight: Option<CachedWeight>,
}

/// A quantized weight. Its node names the tensor for good: whatever changes a parameter makes a new one.
struct CachedWeight {
    node: u64,
    recipe: Recipe,
    /// A [`QuantizedWeight`] of the backend, which a state does not have as a parameter.
    quantized: Box<dyn Any + Send>,
}

/// What quantizing a weight gave.
#[derive(Clone)]
pub(crate) struct QuantizedWeight<B: Fp8Matmul> {
    pub(crate) codes: SavedCodes<B>,
    pub(crate) amax: Option<Scalar<B>>,
}

impl SiteState {
    fn new(k: usize, n: usize, epoch: u64, history_length: usize) -> Self {
        let slots = core::array::from_fn(|_| Slot::new(history_length));
        Self { k, n, epoch, slots, weight: None }
    }

    pub(super) fn from_record(record: SiteRecord, epoch: u64) -> Self {
        let SiteRecord { k, n, input, weight, output_grad } = record;
        let slots = [input, weight, output_grad].map(Slot::from_history);
        Self { k, n, epoch, slots, weight: None }
    }

    pub(super) fn export(&self) -> SiteRecord {
        let [input, weight, output_grad] = core::array::from_fn(|i| self.slots[i].export());
        SiteRecord { k: self.k, n: self.n, input, weight, output_grad }
    }

    pub(super) fn commit(&mut self) {
        self.slots.iter_mut().for_each(Slot::commit);
        self.weight = None;
    }

    pub(super) fn discard(&mut self) {
        self.slots.iter_mut().for_each(Slot::discard);
        self.weight = None;
    }
}

/// One product at a site, from its forward pass to its backward pass.
#[derive(Clone, Debug)]
pub(crate) struct SiteUse {
    state: DelayedState,
    step: u64,
    epoch: u64,
    site: Site,
    delayed: Delayed,
}

impl DelayedState {
    /// The site of the tracked product that runs now. `None` unless the recipe is delayed.
    pub(crate) fn next_site(&self, gemm: Gemm, recipe: Recipe) -> Option<SiteUse> {
        let Scaling::Delayed(delayed) = recipe.scaling else { return None };
        let mut state = self.lock();
        let (step, index) = thread::advance(self.shared.id, state.step);
        // Sites are taken in order, but what has been loaded or cleared meanwhile may be shorter.
        let status = match state.sites.get(index) {
            Some(site) if (site.k, site.n) == (gemm.k, gemm.n) => SiteStatus::Known,
            Some(_) => SiteStatus::Mismatch,
            None => SiteStatus::New,
        };
        if status != SiteStatus::Known {
            while state.sites.len() <= index {
                state.epochs += 1;
                let epoch = state.epochs;
                state.sites.push(SiteState::new(gemm.k, gemm.n, epoch, delayed.history_length));
            }
            state.epochs += 1;
            let epoch = state.epochs;
            state.sites[index] = SiteState::new(gemm.k, gemm.n, epoch, delayed.history_length);
        }
        let epoch = state.sites[index].epoch;
        drop(state);
        Some(SiteUse { state: self.clone(), step, epoch, site: Site { index, status }, delayed })
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
        let mut state = self.state.lock();
        match state.sites.get_mut(self.site.index) {
            Some(site) if site.epoch == self.epoch => {
                let slot = &mut site.slots[operand as usize];
                slot.resize(self.delayed.history_length);
                ScaleRule::Delayed(slot.amax::<B>(self.delayed.amax_choice, device), recipe)
            }
            _ => ScaleRule::Current(recipe),
        }
    }

    /// The weight, if an earlier micro-batch of the running step has quantized this very tensor.
    ///
    /// Exact: within [`DelayedState::step`] no history changes, so by the same recipe the same tensor gets the same scale and the
    /// same codes.
    pub(crate) fn cached_weight<B: Fp8Matmul>(
        &self,
        node: u64,
        recipe: Recipe,
    ) -> Option<QuantizedWeight<B>> {
        let state = self.state.lock();
        let site = state.sites.get(self.site.index).filter(|site| site.epoch == self.epoch)?;
        let cached = site.weight.as_ref()?;
        let same = state.open > 0 && (cached.node, cached.recipe) == (node, recipe);
        cached.quantized.downcast_ref().filter(|_| same).cloned()
    }

    /// Keeps a quantized weight for the micro-batches to come, inside [`DelayedState::step`].
    pub(crate) fn cache_weight<B: Fp8Matmul>(
        &self,
        node: u64,
        recipe: Recipe,
        weight: QuantizedWeight<B>,
    ) {
        let mut state = self.state.lock();
        let in_step = state.open > 0 && self.step >= state.valid_from;
        if let Some(site) = state.sites.get_mut(self.site.index)
            && site.epoch == self.epoch
            && in_step
        {
            site.weight = Some(CachedWeight { node, recipe, quantized: Box::new(weight) });
        }
    }

    /// Hands over the amaxes of the input, the weight and the output gradient, when the backward pass has come here.
    pub(crate) fn deposit<B: Fp8Matmul>(&self, amaxes: [Option<Scalar<B>>; 3]) {
        let mut state = self.state.lock();
        if self.step < state.valid_from {
            return;
        }
        if let Some(site) = state.sites.get_mut(self.site.index)
            && site.epoch == self.epoch
        {
            for (slot, amax) in site.slots.iter_mut().zip(amaxes) {
                if let Some(amax) = amax {
                    slot.observe::<B>(amax);
                }
            }
        }
        drop(state);
        thread::reached(&self.state);
    }
}

/// The larger of two amaxes on the device. Shape `[1]`, no NaN.
pub(super) fn larger<B: Fp8Matmul>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    B::float_max(B::float_cat(vec![a, b], 0))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn_fp8_core::{Fp8Format, Overflow};

    use super::*;
    use crate::matmul::{Measured, Quantize};

    fn weight(amax: f32) -> QuantizedWeight<Flex> {
        let tensor = burn::tensor::Tensor::<Flex, 1>::from_floats([amax, 1.0], &Default::default());
        let scale = ScaleRule::Given(Scalar::Host(1.0), Overflow::Saturate);
        let request = Quantize { format: Fp8Format::E4M3, scale, save: true };
        let quantized = Measured::quantize(&tensor.into_primitive().tensor(), request);
        QuantizedWeight { codes: quantized.codes().expect("asked for"), amax: None }
    }

    /// A weight is found again under its node and recipe, inside its step, and nowhere else.
    #[test]
    fn weights_are_kept_for_their_step() {
        let state = DelayedState::new();
        let site = || {
            super::thread::restart(&state);
            state.next_site(Gemm::matrix(16, 16, 16), Recipe::delayed()).expect("delayed")
        };
        let found =
            |site: &SiteUse, node, recipe| site.cached_weight::<Flex>(node, recipe).is_some();
        let (recipe, other) = (Recipe::delayed(), Recipe::delayed().with_margin(4));
        let outside = site();
        outside.cache_weight(7, recipe, weight(2.0));
        assert!(!found(&outside, 7, recipe));
        state.step(|| {
            let first = site();
            first.cache_weight(7, recipe, weight(2.0));
            let again = site();
            assert!(found(&again, 7, recipe));
            assert!(!found(&again, 8, recipe));
            assert!(!found(&again, 7, other));
        });
        state.step(|| assert!(!found(&site(), 7, recipe)));
    }
}
