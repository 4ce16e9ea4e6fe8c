//! `config.json` with a `quantization_config` of compressed-tensors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::kind::{Input, Kind, Weight};
use crate::error::CheckpointError;
use crate::text;

/// The model's configuration with our quantization in it. Another one that it may have is replaced.
///
/// Layers of one kind are a group. A single group is for the class `Linear`, as the hub's checkpoints have it, and layers that are not quantized are
/// ignored; several groups list their layers.
pub(super) fn config(
    base: &str,
    layers: &BTreeMap<&str, Kind>,
    ignored: &[&str],
) -> Result<String, CheckpointError> {
    let invalid = |found| {
        let what = "the configuration of the model";
        CheckpointError::invalid(what, found, "a JSON object, the text of its config.json")
    };
    let mut config = match serde_json::from_str(base) {
        Ok(Value::Object(config)) => config,
        Ok(_) => return Err(invalid("JSON that is no object".into())),
        Err(error) => return Err(invalid(text::reason(error))),
    };
    let mut groups: BTreeMap<Kind, Vec<&str>> = BTreeMap::new();
    for (name, kind) in layers {
        groups.entry(*kind).or_default().push(name);
    }
    let alone = groups.len() == 1;
    let group = |(place, (kind, names)): (usize, (&Kind, &Vec<&str>))| {
        let targets = if alone { json!(["Linear"]) } else { json!(names) };
        (format!("group_{place}"), group(*kind, targets))
    };
    let groups: Map<String, Value> = groups.iter().enumerate().map(group).collect();
    let quantization = json!({
        "config_groups": groups,
        "format": "float-quantized",
        "global_compression_ratio": null,
        "ignore": ignored,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    });
    config.insert("quantization_config".into(), quantization);
    // Another name of the same, which loaders look for, too.
    config.remove("compression_config");
    if let Some(Value::Object(nested)) = config.get_mut("text_config") {
        nested.remove("quantization_config");
    }
    Ok(format!("{:#}\n", Value::Object(config)))
}

fn group(kind: Kind, targets: Value) -> Value {
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
    let weights = match kind.weight {
        Weight::PerTensor => scales("tensor", false),
        Weight::PerChannel => scales("channel", false),
    };
    let input = match kind.input {
        Input::None => Value::Null,
        Input::Static => scales("tensor", false),
        Input::PerToken => scales("token", true),
    };
    json!({
        "input_activations": input,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}
