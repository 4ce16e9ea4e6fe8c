//! Layers that hold FP8.

pub mod frozen;

pub use frozen::{ActivationScale, FrozenLinear};
