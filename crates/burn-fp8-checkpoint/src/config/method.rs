//! The methods of quantization.

use std::fmt;

/// Which library's form a checkpoint has: `quant_method` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// No quantization is declared, and no tensor is FP8.
    None,
    /// `compressed-tensors`, which vLLM's llm-compressor writes.
    CompressedTensors,
    /// `fp8`: DeepSeek-V3, Qwen3 and others, with `weight_scale_inv`; also AutoFP8's, with `weight_scale`.
    Fp8,
    /// `modelopt`: NVIDIA's Model Optimizer.
    ModelOpt,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "not quantized",
            Self::CompressedTensors => "compressed-tensors",
            Self::Fp8 => "fp8",
            Self::ModelOpt => "modelopt",
        })
    }
}
