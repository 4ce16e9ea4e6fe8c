//! Inference: tensors in FP8, their products, and layers with frozen weights, their records; and files of this crate.

mod files;
mod frozen;
mod modules;
mod quantized;
mod scaled_matmul;
mod tensors;
