//! Safetensors files: their headers, checked, and their data by ranges.

mod dtype;
mod header;
mod shard;
mod source;

pub use dtype::Dtype;
pub(crate) use header::{MAX_NAME, MAX_TENSORS, Named};
pub use shard::TensorInfo;
pub(crate) use shard::{Entry, Shard, too_many};
pub(crate) use source::{Source, open_regular, read_small};
