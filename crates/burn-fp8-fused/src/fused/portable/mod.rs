//! The same in tensor operations, on whatever backend.

pub(super) mod attention;
pub(super) mod norm;
pub(super) mod pointwise;
