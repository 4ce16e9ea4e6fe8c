//! The quantized weight of a running step, which its micro-batches share.

use core::any::Any;

use burn_fp8_core::Recipe;

/// Which quantized weight: the same tensor by the same recipe has the same codes, as long as the history of its site stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WeightKey {
    /// The node of the graph, which names the tensor for good: whatever changes a parameter makes a new one.
    pub(crate) node: u64,
    pub(crate) recipe: Recipe,
}

/// A quantized weight of any backend, which a state does not have as a parameter: asked for with another type it is not found.
pub(super) struct SharedWeight {
    pub(super) step: u64,
    key: WeightKey,
    weight: Box<dyn Any + Send>,
}

impl SharedWeight {
    pub(super) fn new<W: Any + Send>(step: u64, key: WeightKey, weight: W) -> Self {
        Self { step, key, weight: Box::new(weight) }
    }

    pub(super) fn get<W: Any + Clone>(&self, step: u64, key: &WeightKey) -> Option<W> {
        match (self.step, &self.key) == (step, key) {
            true => self.weight.downcast_ref().cloned(),
            false => None,
        }
    }
}
