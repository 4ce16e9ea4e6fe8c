//! What a checkpoint is, in words.

use std::fmt;

use crate::config::Method;
use crate::layer::LayerInfo;
use crate::safetensors::Dtype;
use crate::scheme::{ActivationScaling, WeightScaling};

/// The format of a checkpoint: its method, and how many layers have which scales. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Format {
    /// Whose form it has.
    pub method: Method,
    /// The kinds of layers, the most frequent first.
    pub kinds: Vec<LayerKind>,
}

/// Layers that are quantized alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerKind {
    /// What one scale of a weight is for.
    pub weight: WeightScaling,
    /// The type in which scales are stored.
    pub scale_dtype: Dtype,
    /// How activations are meant to be quantized.
    pub activations: ActivationScaling,
    /// How many layers there are of this kind.
    pub layers: usize,
}

impl Format {
    pub(crate) fn new(method: Method, layers: &[LayerInfo]) -> Self {
        let mut kinds: Vec<LayerKind> = vec![];
        for layer in layers {
            let LayerInfo { weight, scale_dtype, activations, .. } = *layer;
            let new = LayerKind { weight, scale_dtype, activations, layers: 0 };
            let same = |kind: &LayerKind| LayerKind { layers: 0, ..*kind } == new;
            let place = kinds.iter().position(same).unwrap_or_else(|| {
                kinds.push(new);
                kinds.len() - 1
            });
            kinds[place].layers += 1;
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.layers));
        Self { method, kinds }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.method)?;
        if self.kinds.is_empty() {
            return f.write_str(": no quantized layers");
        }
        for (place, kind) in self.kinds.iter().enumerate() {
            let LayerKind { weight, scale_dtype, activations, layers } = kind;
            f.write_str(if place == 0 { ": " } else { "; " })?;
            let noun = if *layers == 1 { "layer" } else { "layers" };
            write!(f, "{layers} {noun}, E4M3 weights with {scale_dtype} scales {weight}, ")?;
            write!(f, "activations {activations}")?;
        }
        Ok(())
    }
}
