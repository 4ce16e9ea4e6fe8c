//! `config.json` with a `quantization_config` of compressed-tensors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::CheckpointError;
use crate::scheme::{ActivationScaling, Scheme, WeightScaling};
use crate::{json, text};

/// The model's configuration with our quantization in it. Another one that it may have is replaced; the rest is as it was, also numbers that are not finite.
pub(super) fn config<'a>(
    base: &str,
    layers: impl Iterator<Item = (&'a str, Scheme)>,
    ignored: &[&str],
) -> Result<String, CheckpointError> {
    let quantization = quantization(layers, ignored);
    // A mark that no text has.
    let plain = with_quantization(&json::marked(base, ""), &quantization)?;
    let mut mark = String::from("~");
    while plain.contains(&mark) {
        mark.push('~');
    }
    let marked = with_quantization(&json::marked(base, &mark), &quantization)?;
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
fn quantization<'a>(layers: impl Iterator<Item = (&'a str, Scheme)>, ignored: &[&str]) -> Value {
    let mut groups: BTreeMap<Scheme, Vec<&str>> = BTreeMap::new();
    for (name, scheme) in layers {
        groups.entry(scheme).or_default().push(name);
    }
    let alone = groups.len() == 1;
    let group = |(place, (scheme, names)): (usize, (&Scheme, &Vec<&str>))| {
        let targets = if alone { json!(["Linear"]) } else { json!(names) };
        (format!("group_{place}"), group(*scheme, targets))
    };
    let groups: Map<String, Value> = groups.iter().enumerate().map(group).collect();
    json!({
        "config_groups": groups,
        "format": "float-quantized",
        "global_compression_ratio": null,
        "ignore": ignored,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    })
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
    let weights = match scheme.weight {
        WeightScaling::PerTensor => scales("tensor", false),
        _ => scales("channel", false),
    };
    let input = match scheme.activations {
        ActivationScaling::Static => scales("tensor", false),
        ActivationScaling::PerToken => scales("token", true),
        _ => Value::Null,
    };
    json!({
        "input_activations": input,
        "output_activations": null,
        "targets": targets,
        "weights": weights,
    })
}
