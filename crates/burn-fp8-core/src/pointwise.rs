//! Operations on single elements.

use crate::Dropout;

/// An operation on single elements whose gradient needs no more than its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// `x · Φ(x)`, by the error function: `x · (1 + erf(x / √2)) / 2` (Hendrycks and Gimpel, 2016).
    Gelu,
    /// 0 for what is dropped, else times [`Dropout::factor`]. Which elements, in the order of a contiguous tensor, says
    /// [`Dropout::keep_group`].
    Dropout(Dropout),
}
