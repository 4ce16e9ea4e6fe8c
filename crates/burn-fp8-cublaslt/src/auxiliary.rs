//! Auxiliary outputs, for users of this crate: burn-fp8 asks for none.

use crate::data_type::DataType;

/// The auxiliary output: what the backward pass of the activation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aux {
    /// What is stored.
    pub kind: AuxKind,
    /// Leading dimension, in elements (for a mask: in bits), at least N.
    pub ld: u64,
    /// Elements (for a mask: bits) from one matrix of the batch to the next.
    pub batch_stride: u64,
}

/// What the auxiliary output holds. Row-major `[M, ld]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuxKind {
    /// For ReLU: one bit an element, set where the input of the activation is positive.
    ReluMask,
    /// For GELU: the input of the activation.
    GeluInput {
        /// Its type: that of D.
        dtype: DataType,
        /// Whether it is multiplied by a factor on the device before it is rounded. Only in FP8.
        scaled: bool,
        /// Whether its largest magnitude before that factor is computed. Only in FP8.
        amax: bool,
    },
}

impl AuxKind {
    pub(crate) const fn scaled(self) -> bool {
        matches!(self, Self::GeluInput { scaled: true, .. })
    }

    pub(crate) const fn amax(self) -> bool {
        matches!(self, Self::GeluInput { amax: true, .. })
    }
}
