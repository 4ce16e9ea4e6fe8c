//! `quant_method: compressed-tensors`: groups of layers, each with its scheme.

use super::node::Node;
use super::patterns::{Dialect, Patterns};
use super::rules::{Rules, Schemes};
use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, MX_BLOCK, Method, Scheme, WeightScaling};
use crate::text;

/// Keys of a configuration that are read here, or change nothing of what weights mean.
const KNOWN: [&str; 13] = [
    "quant_method",
    "config_groups",
    "ignore",
    "format",
    "quantization_status",
    "kv_cache_scheme",
    "sparsity_config",
    "moe_sparsity_config",
    "transform_config",
    "global_compression_ratio",
    "run_compressed",
    "producer",
    "version",
];

/// The same of a group, and of how its weights or inputs are quantized.
const OF_GROUP: [&str; 5] =
    ["targets", "weights", "input_activations", "output_activations", "format"];
const OF_NUMBERS: [&str; 12] = [
    "num_bits",
    "type",
    "symmetric",
    "strategy",
    "group_size",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
];

/// The most groups: each layer is looked for in each.
const MAX_GROUPS: usize = 16;

/// Reads `quantization_config`. Defaults are those of compressed-tensors 0.20.
pub(super) fn read(
    config: &Node<'_>,
    warnings: &mut Vec<String>,
) -> Result<Rules, CheckpointError> {
    refuse_others(config, warnings)?;
    let groups = config.need("config_groups", "an object of groups of layers")?;
    Ok(Rules {
        method: Method::CompressedTensors,
        schemes: schemes(config, &groups, warnings)?,
        ignored: Patterns::of(config.get("ignore"), Dialect::Regexes, warnings)?,
        weight_scale: &["weight_scale"],
        input_scale: &["input_scale"],
    })
}

/// Of several targets that match a layer, the library takes the first of these, whichever group they are of: names, then expressions sorted by their text,
/// then classes (`match_targets` and `apply_quantization_config`, compressed-tensors 0.20). What cannot be told so is refused.
fn schemes(
    config: &Node<'_>,
    groups: &Node<'_>,
    warnings: &mut Vec<String>,
) -> Result<Schemes, CheckpointError> {
    let nodes = groups.entries()?;
    if nodes.is_empty() || nodes.len() > MAX_GROUPS {
        return Err(groups.error(format!("1 to {MAX_GROUPS} groups")));
    }
    let mut all = vec![];
    for node in nodes {
        let (targets, scheme) = group(config, &node.object()?, warnings)?;
        all.extend(targets.into_iter().map(|target| (target, scheme)));
    }
    all.sort_by_key(|(target, _)| (target.contains("re:"), *target));
    if let Some([(target, _), _]) = all.array_windows().find(|[a, b]| a.0 == b.0 && a.1 != b.1) {
        let expected = format!("{} in one group, or the same in all", text::name(target));
        let advice = "keep it in the group that its layers were quantized with";
        return Err(groups.error_with(expected, advice));
    }
    let targets: Vec<_> = all.iter().map(|(target, _)| *target).collect();
    let (patterns, unread) = Patterns::new(groups, &targets, Dialect::Regexes)?;
    match unread {
        Some(unread) if all.iter().any(|(_, scheme)| *scheme != all[0].1) => {
            let advice = "give the groups names of layers instead";
            let expected = format!("groups that can be told from each other, without {unread}");
            return Err(groups.error_with(expected, advice));
        }
        unread => warnings.extend(unread.map(|unread| groups.warning(&unread))),
    }
    let schemes = all.iter().map(|(target, scheme)| (target.to_string(), *scheme)).collect();
    Ok(Schemes::ByTarget(patterns, schemes))
}

/// What changes how weights are stored, or what they mean, beside the groups. `quantization_status` does not: whether weights are codes, their type says.
fn refuse_others(config: &Node<'_>, warnings: &mut Vec<String>) -> Result<(), CheckpointError> {
    if let Some(sparsity) = config.get("sparsity_config")
        && sparsity.says_something()
        && let Some(format) = sparsity.get("format")
        && format.text()? != "dense"
    {
        return Err(format.error("\"dense\": this crate reads no sparse weights"));
    }
    if let Some(transform) = config.get("transform_config")
        && transform.says_something()
    {
        warnings.push(transform.warning("activations are to be transformed before products; this crate reads weights as they are stored"));
    }
    if let Some(cache) = config.get("kv_cache_scheme") {
        warnings.push(cache.cache_warning());
    }
    warnings.extend(config.others(&KNOWN));
    Ok(())
}

/// The targets of a group, and its scheme.
fn group<'a>(
    config: &Node<'_>,
    node: &Node<'a>,
    warnings: &mut Vec<String>,
) -> Result<(Vec<&'a str>, Scheme), CheckpointError> {
    if let Some(outputs) = node.get("output_activations") {
        return Err(outputs.error("null: what layers give is not quantized here"));
    }
    let numbers = ["weights", "input_activations"].map(|key| node.get(key)).into_iter().flatten();
    warnings.extend(numbers.filter_map(|node| node.others(&OF_NUMBERS)));
    warnings.extend(node.others(&OF_GROUP));
    let is_mx = match node.get("format").or_else(|| config.get("format")) {
        None => false,
        Some(format) => match format.text()? {
            "float-quantized" | "naive-quantized" => false,
            "mxfp8-quantized" => true,
            _ => {
                let known = "\"float-quantized\", \"naive-quantized\" or \"mxfp8-quantized\"";
                return Err(format.error(known));
            }
        },
    };
    let targets = node.need("targets", "a list of layers, such as [\"Linear\"]")?;
    let weights = node.need("weights", "how weights are quantized")?;
    let scheme = Scheme {
        weight: weight(&weights.object()?, is_mx)?,
        activations: match node.get("input_activations") {
            None => ActivationScaling::None,
            Some(node) => activations(&node.object()?, is_mx)?,
        },
    };
    Ok((targets.texts()?, scheme))
}

fn weight(node: &Node<'_>, is_mx: bool) -> Result<WeightScaling, CheckpointError> {
    check_e4m3(node)?;
    if let Some(dynamic) = node.get("dynamic")
        && dynamic.boolean() != Some(false)
    {
        return Err(dynamic.error("false: weights have scales in the file"));
    }
    if let Some(order) = node.get("actorder")
        && order.boolean() != Some(false)
        && !matches!(order.text()?, "weight" | "static")
    {
        return Err(order.error("none: this crate reads columns in their order"));
    }
    match strategy(node)? {
        "tensor" => Ok(WeightScaling::PerTensor),
        "channel" => Ok(WeightScaling::PerChannel),
        "block" => {
            let block = node.need("block_structure", "rows and columns of a block")?;
            Ok(WeightScaling::Blocks(block.block_structure()?))
        }
        "group" => match (group_size(node)?, is_mx) {
            (MX_BLOCK, true) => Ok(WeightScaling::Mx),
            (size, false) => Ok(WeightScaling::Blocks([1, size])),
            (_, true) => Err(node.wrong("group_size", WRONG_MX)),
        },
        _ => Err(node.wrong("strategy", "\"tensor\", \"channel\", \"block\" or \"group\"")),
    }
}

fn activations(node: &Node<'_>, is_mx: bool) -> Result<ActivationScaling, CheckpointError> {
    check_e4m3(node)?;
    let dynamic = match node.get("dynamic") {
        None => false,
        Some(dynamic) => dynamic.boolean().ok_or_else(|| dynamic.error("true or false"))?,
    };
    match (dynamic, strategy(node)?) {
        (false, "tensor") => Ok(ActivationScaling::Static),
        (true, "tensor") => Ok(ActivationScaling::PerTensor),
        (true, "token") => Ok(ActivationScaling::PerToken),
        (true, "group") => match (group_size(node)?, is_mx) {
            (MX_BLOCK, true) => Ok(ActivationScaling::Mx),
            (size, false) => Ok(ActivationScaling::Blocks { size, power_of_two: false }),
            (_, true) => Err(node.wrong("group_size", WRONG_MX)),
        },
        (false, _) => Err(node.wrong("strategy", "\"tensor\" for static activations")),
        (true, _) => {
            Err(node
                .wrong("strategy", "\"token\", \"tensor\" or \"group\" for dynamic activations"))
        }
    }
}

/// Absent keys mean what they mean to compressed-tensors: 8 bits, integers, symmetric.
fn check_e4m3(node: &Node<'_>) -> Result<(), CheckpointError> {
    const EXPECTED: &str = "FP8: num_bits 8, type \"float\", symmetric";
    if node.need("type", EXPECTED)?.text()? != "float" {
        return Err(node.wrong("type", EXPECTED));
    }
    if let Some(bits) = node.get("num_bits")
        && bits.integer() != Some(8)
    {
        return Err(bits.error(EXPECTED));
    }
    match node.get("symmetric") {
        Some(symmetric) if symmetric.boolean() != Some(true) => Err(symmetric.error(EXPECTED)),
        _ => Ok(()),
    }
}

/// compressed-tensors derives an absent strategy from the size of groups.
fn strategy<'a>(node: &Node<'a>) -> Result<&'a str, CheckpointError> {
    match (node.get("strategy"), node.get("group_size")) {
        (Some(strategy), _) => strategy.text(),
        (None, None) => Ok("tensor"),
        (None, Some(size)) if size.integer() == Some(-1) => Ok("channel"),
        (None, Some(_)) => Ok("group"),
    }
}

fn group_size(node: &Node<'_>) -> Result<usize, CheckpointError> {
    const EXPECTED: &str = "a positive integer, the elements of a group";
    let size = node.need("group_size", EXPECTED)?;
    size.positive().ok_or_else(|| size.error(EXPECTED))
}

const WRONG_MX: &str = "32, the block of MXFP8";
