//! `quant_method: compressed-tensors`: groups of layers, each with its scheme.

use super::method::Method;
use super::node::Node;
use super::patterns::{Dialect, Patterns};
use super::rules::{Group, Rules};
use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, MX_BLOCK, Scheme, WeightScaling};

/// The most groups: each layer is looked for in each.
const MAX_GROUPS: usize = 16;

/// Reads `quantization_config`. Defaults are those of compressed-tensors 0.20.
pub(super) fn read(
    config: &Node<'_>,
    warnings: &mut Vec<String>,
) -> Result<Rules, CheckpointError> {
    refuse_others(config, warnings)?;
    let Some(list) = config.get("config_groups") else {
        return Err(config.missing("config_groups", "an object of groups of layers"));
    };
    let nodes = list.entries()?;
    if nodes.is_empty() || nodes.len() > MAX_GROUPS {
        return Err(list.error(format!("1 to {MAX_GROUPS} groups")));
    }
    let group = |node: &Node<'_>| group(config, node, warnings);
    let groups = nodes.iter().map(group).collect::<Result<_, _>>()?;
    let ignored = config.get("ignore");
    let ignored =
        ignored.map(|list| Patterns::read(&list, Dialect::Regexes, warnings)).transpose()?;
    Ok(Rules {
        method: Method::CompressedTensors,
        groups,
        ignored: ignored.unwrap_or_default(),
        weight_scale: &["weight_scale"],
        input_scale: &["input_scale"],
    })
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
        warnings.push(cache.warning("scales of a quantized KV cache are left as plain tensors"));
    }
    Ok(())
}

fn group(
    config: &Node<'_>,
    node: &Node<'_>,
    warnings: &mut Vec<String>,
) -> Result<Group, CheckpointError> {
    let node = node.clone().object()?;
    let format = node.get("format").or_else(|| config.get("format"));
    let is_mx = match &format {
        None => false,
        Some(format) => match format.text()? {
            "float-quantized" | "naive-quantized" => false,
            "mxfp8-quantized" => true,
            _ => {
                return Err(
                    format.error("\"float-quantized\", \"naive-quantized\" or \"mxfp8-quantized\"")
                );
            }
        },
    };
    let Some(targets) = node.get("targets") else {
        return Err(node.missing("targets", "a list of layers, such as [\"Linear\"]"));
    };
    let targets = Patterns::read(&targets, Dialect::Regexes, warnings)?;
    let Some(weights) = node.get("weights") else {
        return Err(node.missing("weights", "how weights are quantized"));
    };
    let scheme = Scheme {
        weight: weight(&weights.object()?, is_mx)?,
        activations: match node.get("input_activations") {
            None => ActivationScaling::None,
            Some(node) => activations(&node.object()?, is_mx)?,
        },
    };
    Ok(Group { targets: Some(targets), scheme })
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
        "block" => match node.get("block_structure") {
            Some(block) => Ok(WeightScaling::Blocks(block.block()?)),
            None => Err(node.missing("block_structure", "rows and columns of a block")),
        },
        "group" => match (group_size(node)?, is_mx) {
            (MX_BLOCK, true) => Ok(WeightScaling::Mx),
            (size, false) => Ok(WeightScaling::Blocks([1, size])),
            (_, true) => Err(wrong_mx(node)),
        },
        _ => Err(wrong_strategy(node, "\"tensor\", \"channel\", \"block\" or \"group\"")),
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
            (_, true) => Err(wrong_mx(node)),
        },
        (false, _) => Err(wrong_strategy(node, "\"tensor\" for static activations")),
        (true, _) => {
            Err(wrong_strategy(node, "\"token\", \"tensor\" or \"group\" for dynamic activations"))
        }
    }
}

/// Absent keys mean what they mean to compressed-tensors: 8 bits, integers, symmetric.
fn check_e4m3(node: &Node<'_>) -> Result<(), CheckpointError> {
    const EXPECTED: &str = "FP8: num_bits 8, type \"float\", symmetric";
    match node.get("type") {
        None => return Err(node.missing("type", EXPECTED)),
        Some(kind) if kind.text()? != "float" => return Err(kind.error(EXPECTED)),
        Some(_) => (),
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
    let Some(size) = node.get("group_size") else {
        return Err(node.missing("group_size", EXPECTED));
    };
    size.positive().ok_or_else(|| size.error(EXPECTED))
}

fn wrong_mx(node: &Node<'_>) -> CheckpointError {
    let expected = format!("{MX_BLOCK}, the block of MXFP8");
    match node.get("group_size") {
        Some(size) => size.error(expected),
        None => node.missing("group_size", expected),
    }
}

fn wrong_strategy(node: &Node<'_>, expected: &str) -> CheckpointError {
    match node.get("strategy") {
        Some(strategy) => strategy.error(expected),
        None => node.missing("strategy", expected),
    }
}
