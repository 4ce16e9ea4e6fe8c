//! `config.json` with a `quantization_config`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, MX_BLOCK, Scheme, WeightScaling};
use crate::{json, text};

/// The model's configuration with this quantization in it. Another one that it may have is replaced; the rest is as it was, also numbers that are not finite.
pub(super) fn config(base: &str, quantization: &Value) -> Result<String, CheckpointError> {
    // A mark that no text has.
    let plain = with_quantization(&json::marked(base, ""), quantization)?;
    let mut mark = String::from("~");
    while plain.contains(&mark) {
        mark.push('~');
    }
    let marked = with_quantization(&json::marked(base, &mark), quantization)?;
    Ok(json::unmarked(&marked, &mark))
}

fn with_quantization(base: &str, quantization: &Value) -> Result<String, CheckpointError> {
    let found = match serde_json::from_str(base) {
        Ok(Value::Object(mut config)) => {
            config.insert("quantization_config".into(), quantization.clone());
            // Another name of the same, which loaders look for, too.
            config.remove("compression_config");
            if let Some(Value::Object(nested)) = config.get_mut("text_config") {
                nested.remove("quantization_config");
            }
            return Ok(format!("{:#}\n", Value::Object(config)));
        }
        Ok(_) => "JSON that is no object".into(),
        Err(error) => text::reason(error),
    };
    let what = "the configuration of the model";
    Err(CheckpointError::invalid(what, found, "a JSON object, the text of its config.json"))
}

/// Layers of one kind are a group. A single group is for the class `Linear`, as the hub's checkpoints have it, and layers that are not quantized are
/// ignored; several groups list their layers.
pub(super) fn compressed_tensors<'a>(
    layers: impl Iterator<Item = (&'a str, Scheme)>,
    ignored: &[&str],
) -> Value {
    let mut groups: BTreeMap<Scheme, Vec<&str>> = BTreeMap::new();
    for (name, scheme) in layers {
        groups.entry(scheme).or_default().push(name);
    }
    let alone = groups.len() == 1;
    let mut formats: Vec<_> = groups.keys().map(|scheme| format(*scheme)).collect();
    formats.dedup();
    let format = match formats[..] {
        [format] => format,
        _ => "mixed-precision",
    };
    let group = |(place, (scheme, names)): (usize, (&Scheme, &Vec<&str>))| {
        let targets = if alone { json!(["Linear"]) } else { json!(names) };
        (format!("group_{place}"), group(*scheme, targets))
    };
    let groups: Map<String, Value> = groups.iter().enumerate().map(group).collect();
    json!({
        "config_groups": groups,
        "format": format,
        "global_compression_ratio": null,
        "ignore": ignored,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    })
}

/// The scheme of the first layer, which is that of all.
pub(super) fn deepseek<'a>(
    mut layers: impl Iterator<Item = (&'a str, Scheme)>,
    ignored: &[&str],
) -> Value {
    let mut quantization = json!({
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ignored,
        "quant_method": "fp8",
    });
    if let Some((_, Scheme { weight: WeightScaling::Blocks(block), activations })) = layers.next() {
        quantization["weight_block_size"] = json!(block);
        if matches!(activations, ActivationScaling::Blocks { power_of_two: true, .. }) {
            quantization["scale_fmt"] = json!("ue8m0");
        }
    }
    quantization
}

fn format(scheme: Scheme) -> &'static str {
    match scheme.weight {
        WeightScaling::Mx => "mxfp8-quantized",
        _ => "float-quantized",
    }
}

fn group(scheme: Scheme, targets: Value) -> Value {
    let scales = |strategy: &str, dynamic: bool| {
        json!({
            "dynamic": dynamic,
            "group_size": null,
            "num_bits": 8,
            "strategy": strategy,
            "symmetric": true,
            "type": "float",
        })
    };
    let grouped = |dynamic: bool, size: usize| {
        let mut scales = scales("group", dynamic);
        scales["group_size"] = json!(size);
        if scheme.weight == WeightScaling::Mx {
            scales["scale_dtype"] = json!("torch.uint8");
        }
        scales
    };
    let weights = match scheme.weight {
        WeightScaling::PerTensor => scales("tensor", false),
        WeightScaling::PerChannel => scales("channel", false),
        WeightScaling::Blocks(block) => {
            let mut scales = scales("block", false);
            scales["block_structure"] = json!(block);
            scales
        }
        WeightScaling::Mx => grouped(false, MX_BLOCK),
    };
    let input = match scheme.activations {
        ActivationScaling::None => Value::Null,
        ActivationScaling::Static => scales("tensor", false),
        ActivationScaling::PerTensor => scales("tensor", true),
        ActivationScaling::PerToken => scales("token", true),
        ActivationScaling::Blocks { size, .. } => grouped(true, size),
        ActivationScaling::Mx => grouped(true, MX_BLOCK),
    };
    json!({
        "format": format(scheme),
        "input_activations": input,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}
