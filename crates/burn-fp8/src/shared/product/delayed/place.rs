//! Where a product stands in a pass.

use crate::weights::WeightId;

/// The place of a product among the tracked ones of its pass.
///
/// What tells it is what came right before: a layer that is left out, or comes in, moves the product after it. What follows that one stands where it stood, with other inputs maybe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The last product before it that is known by its weight.
    pub(super) after: Option<WeightId>,
    /// How many products there are from that one on, or from the beginning.
    pub(super) offset: usize,
    /// How many products came before it in all.
    pub(super) index: usize,
}

impl Place {
    pub(super) const FIRST: Self = Self { after: None, offset: 0, index: 0 };

    pub(super) fn next(self) -> Self {
        Self { offset: self.offset + 1, index: self.index + 1, ..self }
    }

    /// Whether the same came right before both.
    pub(super) fn is(self, other: Self) -> bool {
        (self.after, self.offset) == (other.after, other.offset)
    }
}
