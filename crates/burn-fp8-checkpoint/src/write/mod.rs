//! Writing checkpoints in compressed-tensors' form.

mod config;
mod export;
mod header;
mod kind;
mod partial;

pub use export::Export;
