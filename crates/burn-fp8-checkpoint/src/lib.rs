//! FP8 checkpoints as Hugging Face's hub has them, read and written. Needs neither Burn nor a GPU.
//!
//! - [`Checkpoint::open`]: a folder or a file. Opening reads headers and configurations; layers are read when they are asked for.
//! - [`Checkpoint::format`], [`layers`](Checkpoint::layers), [`tensors`](Checkpoint::tensors): what it is and what it holds.
//! - [`Checkpoint::linear`]: a [`QuantizedLinear`], with [`Scales`] in one form for all formats, and the [`Activations`] that it is meant for.
//! - [`Export`]: layers and tensors, written as compressed-tensors does, or in DeepSeek's layout.
//! - [`TensorFile`]: one safetensors file without a configuration. [`read_file`], [`write_file`]: any file, within limits, whole or not at all.
//!
//! Files are not trusted: what headers and configurations say is checked before it is used, and every [`CheckpointError`] names the file, what was found
//! and what was expected. A *scale* is always the dequantization multiplier: `x ≈ code × scale`, also where files call it `weight_scale_inv`.

mod checkpoint;
mod config;
mod error;
mod file;
mod files;
mod json;
mod layer;
mod numbers;
mod plan;
mod safetensors;
mod scheme;
mod text;
mod write;

pub use checkpoint::Checkpoint;
pub use error::CheckpointError;
pub use file::{TensorFile, read_file, write_file};
pub use layer::{Activations, PlainTensor, QuantizedLinear, Scales};
pub use safetensors::{Dtype, TensorInfo};
pub use scheme::{ActivationScaling, Format, LayerInfo, LayerKind, Method, WeightScaling};
pub use write::Export;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
