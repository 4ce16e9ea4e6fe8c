//! Layers of FP8 models as they are published: for inference, with the weights as they lie in the file.
//!
//! ```no_run
//! use burn::backend::Flex;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::checkpoint::Checkpoint;
//! use burn_fp8::nn::CheckpointLinear;
//!
//! let checkpoint = Checkpoint::open("Qwen3-8B-FP8")?;
//! println!("{}", checkpoint.format());
//!
//! let device = Default::default();
//! let name = "model.layers.0.mlp.up_proj";
//! let layer = CheckpointLinear::<Flex>::load(&checkpoint, name, &device)?;
//! let [d_input, d_output] = layer.dims();
//! let x = Tensor::random([1, d_input], Distribution::Default, &device);
//! assert_eq!(layer.forward(x).dims(), [1, d_output]);
//! # Ok::<(), burn_fp8::checkpoint::CheckpointError>(())
//! ```
//!
//! The crate [`burn_fp8_checkpoint`](crate::checkpoint) reads the files, and says which formats there are.

mod export;
mod forward;
mod held;
mod layer;
mod module;

pub use layer::CheckpointLinear;
