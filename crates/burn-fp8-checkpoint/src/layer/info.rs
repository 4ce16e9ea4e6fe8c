//! Layers and tensors by name, without their data.

use std::fmt;

use crate::safetensors::Dtype;
use crate::scheme::{ActivationScaling, WeightScaling};
use crate::text;

/// A quantized linear layer of a checkpoint: an E4M3 weight, its scales, and what else belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerInfo {
    /// The name without `.weight`: `model.layers.0.mlp.down_proj`.
    pub name: String,
    /// `[out, in]`, as stored.
    pub shape: [usize; 2],
    /// What one scale of the weight is for.
    pub weight: WeightScaling,
    /// The type in which scales are stored.
    pub scale_dtype: Dtype,
    /// How activations are meant to be quantized.
    pub activations: ActivationScaling,
    /// Whether it has a bias, `[out]`.
    pub bias: bool,
    /// The bytes of all its tensors in the file.
    pub bytes: u64,
}

impl fmt::Display for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, shape, weight, scale_dtype, activations, bias, bytes } = self;
        let bias = if *bias { ", bias" } else { "" };
        let name = text::name(name);
        write!(f, "{name}: E4M3 {shape:?}, {scale_dtype} scales {weight}{bias}; ")?;
        write!(f, "activations {activations}; {bytes} bytes")
    }
}

/// A tensor of a checkpoint that belongs to no quantized layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The type of elements.
    pub dtype: Dtype,
    /// The sizes.
    pub shape: Vec<usize>,
    /// The bytes in the file.
    pub bytes: u64,
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, dtype, shape, bytes } = self;
        write!(f, "{}: {dtype} {shape:?}; {bytes} bytes", text::name(name))
    }
}
