//! What compressed-tensors' `float-quantized` says of a layer.

use crate::error::CheckpointError;
use crate::layer::{Activations, QuantizedLinear};

/// How the scales of a layer are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) weight: Weight,
    pub(super) input: Input,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    PerTensor,
    PerChannel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Input {
    None,
    Static,
    PerToken,
}

impl Kind {
    /// The kind of a layer, if it is one of those that are written.
    pub(super) fn of(layer: &QuantizedLinear) -> Result<Self, CheckpointError> {
        let scales = layer.scales();
        // A single row is both; one scale per tensor is the simpler of them.
        let weight = match scales.grid() {
            [1, 1] => Weight::PerTensor,
            [rows, 1] if rows == layer.shape()[0] => Weight::PerChannel,
            grid => {
                let found = format!("{grid:?} scales of blocks {:?}", scales.block());
                let expected = "one scale per tensor or per channel: other forms are not written";
                return Err(CheckpointError::invalid("a layer to write", found, expected));
            }
        };
        let input = match layer.activations() {
            Activations::None => Input::None,
            Activations::Static(_) => Input::Static,
            Activations::PerToken => Input::PerToken,
            other => {
                let found = format!("activations {other:?}");
                let expected = "None, Static or PerToken: other forms are not written";
                return Err(CheckpointError::invalid("a layer to write", found, expected));
            }
        };
        Ok(Self { weight, input })
    }
}
