//! `quant_method: modelopt`, in `config.json` or in `hf_quant_config.json` under `quantization`.

use super::node::Node;
use super::patterns::{Dialect, Patterns};
use super::rules::{Rules, Schemes};
use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, Method, Scheme, WeightScaling};
use crate::text;

/// Reads `quantization_config`, `quantization`, or both, which then must agree.
///
/// `FP8` was read from files that ModelOpt wrote; the other algorithms are read as their names and vLLM's loaders describe them.
pub(super) fn read(
    config: Option<&Node<'_>>,
    beside: Option<&Node<'_>>,
    warnings: &mut Vec<String>,
) -> Result<Rules, CheckpointError> {
    let algorithm = match (
        config.and_then(|node| node.get("quant_algo")),
        beside.and_then(|node| node.get("quant_algo")),
    ) {
        (Some(here), Some(there)) if here.text()? != there.text()? => {
            let expected =
                format!("\"{}\", as hf_quant_config.json says", text::text(there.text()?));
            return Err(here.error_with(expected, "one of the files is of another checkpoint"));
        }
        (Some(node), _) | (None, Some(node)) => node,
        (None, None) => {
            let node = config.or(beside).cloned();
            return Err(node.map_or_else(
                || CheckpointError::invalid("ModelOpt's configuration", "nothing", "quant_algo"),
                |node| node.wrong("quant_algo", KNOWN),
            ));
        }
    };
    let scheme = match algorithm.text()? {
        "FP8" => {
            Scheme { weight: WeightScaling::PerTensor, activations: ActivationScaling::Static }
        }
        "FP8_PER_CHANNEL_PER_TOKEN" => {
            Scheme { weight: WeightScaling::PerChannel, activations: ActivationScaling::PerToken }
        }
        "FP8_PB_WO" => Scheme {
            weight: WeightScaling::Blocks([128, 128]),
            activations: ActivationScaling::None,
        },
        "MXFP8" => Scheme { weight: WeightScaling::Mx, activations: ActivationScaling::Mx },
        _ => return Err(algorithm.error(KNOWN)),
    };
    for node in config.iter().chain(&beside) {
        if let Some(cache) = node.get("kv_cache_quant_algo").or_else(|| node.get("kv_cache_scheme"))
        {
            warnings.push(cache.cache_warning());
        }
        warnings.extend(node.others(&KEYS));
    }
    let list = config.and_then(|node| node.get("ignore"));
    let list = list.or_else(|| beside.and_then(|node| node.get("exclude_modules")));
    Ok(Rules {
        method: Method::ModelOpt,
        schemes: Schemes::All(scheme),
        ignored: Patterns::of(list, Dialect::Wildcards, warnings)?,
        weight_scale: &["weight_scale", "weight_scale_inv"],
        input_scale: &["input_scale"],
    })
}

/// Keys that are read here, or say the same in other words.
const KEYS: [&str; 10] = [
    "quant_method",
    "quant_algo",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "ignore",
    "exclude_modules",
    "config_groups",
    "group_size",
    "producer",
    "quantization_status",
];

const KNOWN: &str = "\"FP8\", \"FP8_PER_CHANNEL_PER_TOKEN\", \"FP8_PB_WO\" or \"MXFP8\"";
