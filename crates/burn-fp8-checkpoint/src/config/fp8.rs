//! `quant_method: fp8`: DeepSeek-V3's and Qwen3's blocks, and one scale per tensor.

use super::node::Node;
use super::patterns::{Dialect, Patterns};
use super::rules::{Rules, Schemes};
use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, Method, Scheme, WeightScaling};

/// Keys that are read here, or change nothing of what weights mean.
const KNOWN: [&str; 9] = [
    "quant_method",
    "fmt",
    "scale_fmt",
    "activation_scheme",
    "weight_block_size",
    "modules_to_not_convert",
    "ignored_layers",
    "kv_cache_scheme",
    "dequantize",
];

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
    // transformers' default.
    let is_static = match config.get("activation_scheme") {
        None => false,
        Some(scheme) => match scheme.text()? {
            "dynamic" => false,
            "static" => true,
            _ => return Err(scheme.error("\"dynamic\" or \"static\"")),
        },
    };
    let scheme = |block: Option<[usize; 2]>| Scheme {
        weight: block.map_or(WeightScaling::PerTensor, WeightScaling::Blocks),
        activations: match (is_static, block) {
            (true, _) => ActivationScaling::Static,
            (false, Some([_, size])) => ActivationScaling::Blocks { size, power_of_two },
            (false, None) => ActivationScaling::PerTensor,
        },
    };
    let schemes = match config.get("weight_block_size") {
        Some(block) => Schemes::All(scheme(Some(block.block()?))),
        // Null is one scale to everybody. Without the key it is to AutoFP8 and vLLM, while transformers 5.23 means blocks of 128 × 128
        // (`FineGrainedFP8Config`): its scales have a name of their own, and are a grid.
        None if config.has("weight_block_size") => Schemes::All(scheme(None)),
        None => Schemes::ByScale { grid: scheme(Some([128, 128])), rest: scheme(None) },
    };
    if let Some(cache) = config.get("kv_cache_scheme") {
        warnings.push(cache.cache_warning());
    }
    warnings.extend(config.others(&KNOWN));
    // AutoFP8 and vLLM call it `ignored_layers`.
    let ignored =
        ["modules_to_not_convert", "ignored_layers"].iter().find_map(|key| config.get(key));
    Ok(Rules {
        method: Method::Fp8,
        schemes,
        ignored: Patterns::of(ignored, Dialect::Parts, warnings)?,
        weight_scale: &["weight_scale_inv", "weight_scale"],
        input_scale: &["activation_scale", "input_scale"],
    })
}
