//! What a configuration says, whatever its method.

use std::collections::HashMap;

use super::patterns::Patterns;
use crate::safetensors::TensorInfo;
use crate::scheme::{Method, Scheme};

/// Which layers are quantized, and how.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) method: Method,
    pub(super) schemes: Schemes,
    pub(super) ignored: Patterns,
    /// What a weight's scale is called, behind the name of its layer.
    pub(crate) weight_scale: &'static [&'static str],
    /// What a static scale of activations is called.
    pub(crate) input_scale: &'static [&'static str],
}

/// Schemes and the layers that they are for.
#[derive(Debug)]
pub(super) enum Schemes {
    /// One for all layers.
    All(Scheme),
    /// One for layers whose scales are a grid called `weight_scale_inv`, one for the rest.
    ByScale { grid: Scheme, rest: Scheme },
    /// By names, expressions for names, and classes, in this order.
    ByTarget(Patterns, HashMap<String, Scheme>),
}

/// The classes of a linear layer, as PyTorch has them.
const CLASSES: [&str; 2] = ["Linear", "Module"];

impl Rules {
    /// The scheme of a layer whose weight is FP8, and whose scale is this one. A file does not say a layer's class; one with an FP8 weight `[out, in]` counts as
    /// `Linear`.
    pub(crate) fn scheme(&self, layer: &str, scale: Option<&TensorInfo>) -> Option<Scheme> {
        let is_grid =
            |scale: &TensorInfo| scale.shape.len() == 2 && scale.name.ends_with("weight_scale_inv");
        match &self.schemes {
            Schemes::All(scheme) => Some(*scheme),
            Schemes::ByScale { grid, .. } if scale.is_some_and(is_grid) => Some(*grid),
            Schemes::ByScale { rest, .. } => Some(*rest),
            Schemes::ByTarget(targets, schemes) => {
                let class = || CLASSES.into_iter().find(|class| schemes.contains_key(*class));
                schemes.get(targets.first(layer).or_else(class)?).copied()
            }
        }
    }

    /// Whether the configuration says that a layer is not quantized.
    pub(crate) fn ignores(&self, layer: &str) -> bool {
        self.ignored.first(layer).is_some()
    }
}
