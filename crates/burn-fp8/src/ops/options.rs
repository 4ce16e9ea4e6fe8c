//! How operands are quantized with delayed scaling, and how a layer multiplies.

use burn::tensor::{DType, FloatDType};
use burn_fp8_core::{AmaxChoice, Fp8Format};
use serde::{Deserialize, Serialize};

/// How [`in_qdq`](super::in_qdq) and [`out_qdq`](super::out_qdq) quantize and update their state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QdqOptions {
    /// The format of the codes: usually E4M3 in [`in_qdq`](super::in_qdq), E5M2 in [`out_qdq`](super::out_qdq).
    pub format: Fp8Format,
    /// The type that the scale is rounded to before the division; `None`: the type of the tensor. The division runs in the
    /// promoted type of this and the tensor's.
    pub compute_dtype: Option<FloatDType>,
    /// The scale is multiplied by 2 to this power: room for values larger than those of the history. 0 in Flax's layers.
    pub margin: i32,
    /// Which amax of the history counts. The maximum in Flax.
    pub amax_choice: AmaxChoice,
}

impl QdqOptions {
    /// Flax's: no margin, the maximum of the history, computed in the type of the tensor.
    pub fn new(format: Fp8Format) -> Self {
        Self { format, compute_dtype: None, margin: 0, amax_choice: AmaxChoice::Maximum }
    }

    /// The same options with another margin.
    pub fn with_margin(self, margin: i32) -> Self {
        Self { margin, ..self }
    }

    /// The same options with another choice of the amax.
    pub fn with_amax_choice(self, amax_choice: AmaxChoice) -> Self {
        Self { amax_choice, ..self }
    }
}

/// How an FP8 layer multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DotMode {
    /// Operands are dequantized, then multiplied: `in_qdq`, `in_qdq`, dot, `out_qdq`. Flax's `Fp8DotGeneralOp`. Always emulated.
    QuantizeDequantize,
    /// Codes are multiplied, the product then by both scales at once: the order of FP8 hardware, and what runs natively where the
    /// device can. Flax's `Fp8DirectDotGeneralOp`.
    #[default]
    Direct,
}

/// The options of an FP8 layer's product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DotOptions {
    /// How it multiplies.
    pub mode: DotMode,
    /// The scales are multiplied by 2 to this power.
    pub margin: i32,
    /// Which amax of a history counts.
    pub amax_choice: AmaxChoice,
}

impl DotOptions {
    /// How an operand of the product is quantized, where it is computed in this type.
    pub(super) fn qdq(self, format: Fp8Format, dtype: DType) -> QdqOptions {
        let Self { mode: _, margin, amax_choice } = self;
        QdqOptions { format, compute_dtype: Some(dtype.into()), margin, amax_choice }
    }
}
