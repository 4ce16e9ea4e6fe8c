//! `quant_method: fp8`: DeepSeek-V3's and Qwen3's blocks, and one scale per tensor.

use super::method::Method;
use super::node::Node;
use super::patterns::{Dialect, Patterns};
use super::rules::{Group, Rules};
use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, Scheme, WeightScaling};

/// Reads `quantization_config`.
pub(super) fn read(
    config: &Node<'_>,
    warnings: &mut Vec<String>,
) -> Result<Rules, CheckpointError> {
    if let Some(format) = config.get("fmt")
        && !matches!(format.text()?, "e4m3" | "e4m3fn" | "float8_e4m3fn")
    {
        return Err(format.error("\"e4m3\", the only format of weights that this crate reads"));
    }
    let power_of_two = match config.get("scale_fmt") {
        None => false,
        Some(format) => match format.text()? {
            "ue8m0" => true,
            "float" | "float32" | "fp32" => false,
            _ => return Err(format.error("\"ue8m0\", or none")),
        },
    };
    let block = config.get("weight_block_size").map(|block| block.block()).transpose()?;
    // transformers' default.
    let is_static = match config.get("activation_scheme") {
        None => false,
        Some(scheme) => match scheme.text()? {
            "dynamic" => false,
            "static" => true,
            _ => return Err(scheme.error("\"dynamic\" or \"static\"")),
        },
    };
    let activations = match (is_static, block) {
        (true, _) => ActivationScaling::Static,
        (false, Some([_, size])) => ActivationScaling::Blocks { size, power_of_two },
        (false, None) => ActivationScaling::PerTensor,
    };
    let weight = block.map_or(WeightScaling::PerTensor, WeightScaling::Blocks);
    // AutoFP8 and vLLM call it `ignored_layers`.
    let ignored =
        ["modules_to_not_convert", "ignored_layers"].iter().find_map(|key| config.get(key));
    let ignored =
        ignored.map(|list| Patterns::read(&list, Dialect::Parts, warnings)).transpose()?;
    Ok(Rules {
        method: Method::Fp8,
        groups: vec![Group { targets: None, scheme: Scheme { weight, activations } }],
        ignored: ignored.unwrap_or_default(),
        weight_scale: &["weight_scale_inv", "weight_scale"],
        input_scale: &["activation_scale", "input_scale"],
    })
}
