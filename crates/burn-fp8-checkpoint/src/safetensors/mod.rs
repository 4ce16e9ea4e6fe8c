//! Safetensors files: their headers, checked, and their data by ranges.

mod dtype;
mod header;
mod ranges;
mod shard;
mod source;

pub use dtype::Dtype;
pub(crate) use header::{MAX_HEADER, MAX_NAME};
pub(crate) use shard::{Entry, Shard};
pub(crate) use source::{Source, read_small};
