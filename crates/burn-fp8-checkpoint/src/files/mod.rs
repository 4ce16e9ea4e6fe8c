//! The files of a checkpoint: where they lie, and all their tensors as one list.

mod index;
mod location;
mod tensors;

pub(crate) use location::Location;
pub(crate) use tensors::{Id, Tensors};
