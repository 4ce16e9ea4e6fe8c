//! Which tensors make which layers, and whether their types and shapes are what the configuration means.

mod layer;
mod leftover;
mod make;
mod names;

pub(crate) use layer::PlannedLayer;
pub(crate) use make::{Plan, describe, make};
