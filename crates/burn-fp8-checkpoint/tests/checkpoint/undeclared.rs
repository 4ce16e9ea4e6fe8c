//! What configurations may not say, and tensors that no configuration means.

use burn_fp8_checkpoint::Checkpoint;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::{assert_says, f32s, folder, ones};
use crate::declared::{float, fp8, layer, linear, open, refused, warning};

#[test]
fn what_is_not_read_is_refused() {
    let with = |key: &str, value: Value| {
        let mut config = linear(float("tensor"), Value::Null, Value::Null);
        config["quantization_config"][key] = value;
        config
    };
    let weights = |weights: Value| linear(weights, Value::Null, Value::Null);
    let weight = |key: &str, value: Value| {
        let mut fields = json!({ "num_bits": 8, "type": "float" });
        fields[key] = value;
        weights(fields)
    };
    let inputs = |inputs: Value| linear(float("tensor"), inputs, Value::Null);
    let quantized = "quantization_config.";
    for (config, words) in [
        (with("format", json!("pack-quantized")), ["format", "pack-quantized", "float-quantized"]),
        (
            with("sparsity_config", json!({ "format": "sparse-24-bitmask" })),
            ["sparsity_config.format", "sparse-24", "dense"],
        ),
        (with("config_groups", json!({})), ["config_groups", "{}", "groups"]),
        (with("config_groups", json!(null)), ["config_groups", "no such key", "groups"]),
        (with("config_groups", json!({ "g": 3 })), ["config_groups.g", "3", "object"]),
        (with("ignore", json!("lm_head")), ["ignore", "lm_head", "list"]),
        (with("quant_method", json!(7)), ["quant_method", "7", "text"]),
        (weights(json!({ "num_bits": 8 })), ["weights.type", "no such key", "float"]),
        (weight("type", json!("int")), ["weights.type", "int", "float"]),
        (weight("num_bits", json!(4)), ["weights.num_bits", "4", "num_bits 8"]),
        (weight("symmetric", json!(false)), ["weights.symmetric", "false", "symmetric"]),
        (weight("dynamic", json!(true)), ["weights.dynamic", "true", "false"]),
        (weight("actorder", json!("group")), ["weights.actorder", "group", "none"]),
        (weights(float("block")), ["weights.block_structure", "no such key", "rows"]),
        (weights(float("group")), ["weights.group_size", "no such key", "positive"]),
        (weights(float("tensor_group")), ["weights.strategy", "tensor_group", "channel"]),
        (inputs(float("token")), ["input_activations.strategy", "token", "tensor"]),
        (
            inputs(json!({ "type": "float", "dynamic": "local" })),
            ["input_activations.dynamic", "local", "true or false"],
        ),
        (fp8(json!({ "fmt": "e5m2" })), ["fmt", "e5m2", "e4m3"]),
        (fp8(json!({ "scale_fmt": "e5m3" })), ["scale_fmt", "e5m3", "ue8m0"]),
        (
            fp8(json!({ "activation_scheme": "sometimes" })),
            ["activation_scheme", "sometimes", "dynamic"],
        ),
        (fp8(json!({ "weight_block_size": 128 })), ["weight_block_size", "128", "two positive"]),
        (
            fp8(json!({ "weight_block_size": [128, -1] })),
            ["weight_block_size", "-1", "two positive"],
        ),
        (json!({ "quantization_config": {} }), ["quant_method", "no such key", "modelopt"]),
        (json!({ "quantization_config": [] }), ["quantization_config", "[]", "object"]),
    ] {
        let key = if words[0] == "quantization_config" { "" } else { quantized };
        refused(&config, &layer("a"), &["config.json", key, words[0], words[1], words[2]]);
    }
}

#[test]
fn a_scale_is_for_codes_whatever_the_status() {
    let mut config = linear(float("tensor"), Value::Null, Value::Null);
    config["quantization_config"]["quantization_status"] = json!("frozen");
    assert_eq!(open(&config, &layer("a")).unwrap().layers().len(), 1);
    let tensors = [f32s("a.weight", &[1, 2], &[1.0, 2.0]), layer("a")[1].clone()];
    refused(&config, &tensors, &["`a.weight`", "found F32 [1, 2]", "F8_E4M3"]);
}

#[test]
fn what_others_call_a_scale_is_pointed_at() {
    let config = linear(float("tensor"), Value::Null, Value::Null);
    for (field, advice) in [
        ("weight_scale_inv", "is quant_method right?"),
        ("scale", "DeepSeek's own programs"),
        ("qscale_weight", "Mistral's own form"),
    ] {
        let other = format!("a.{field}");
        let tensors = [ones("a.weight", [4, 6]), f32s(&other, &[1], &[1.0])];
        let words = ["`a.weight_scale`", "no such tensor", &format!("there is `{other}`"), advice];
        refused(&config, &tensors, &words);
    }
    refused(&config, &[ones("a.weight", [4, 6])], &["no such tensor", "open the folder"]);
}

#[test]
fn other_fp8_tensors_and_unused_scales_are_told() {
    let mut tensors = layer("a").to_vec();
    tensors.push(ones("experts.up", [2, 2]));
    tensors.push(f32s("a.input_scale", &[1], &[1.0]));
    let checkpoint = open(&fp8(json!({})), &tensors).unwrap();
    let warnings = checkpoint.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("`a.input_scale`") && warnings[1].contains("`experts.up`"));
    let plain: Vec<_> = checkpoint.tensors().iter().map(|info| &info.name[..]).collect();
    assert_eq!(plain, ["a.input_scale", "experts.up"]);
}

#[test]
fn stacked_experts_and_their_scales_are_plain() {
    let mut tensors = layer("a").to_vec();
    let codes: Vec<u8> = (0..24).collect();
    tensors.push(("experts.up.weight".into(), Dtype::F8_E4M3, vec![2, 3, 4], codes.clone()));
    tensors.push(f32s("experts.up.weight_scale", &[2, 1, 1], &[0.5, 2.0]));
    let folder = folder(&fp8(json!({})).to_string(), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.layers().len(), 1);
    assert_says(warning(&checkpoint), &["`experts.up.weight`"]);
    let weight = checkpoint.tensor("experts.up.weight").unwrap();
    assert_eq!((&weight.info().shape[..], weight.bytes()), (&[2, 3, 4][..], &codes[..]));
    let scale = checkpoint.tensor("experts.up.weight_scale").unwrap();
    assert_eq!(scale.to_f32().unwrap(), [0.5, 2.0]);
    checkpoint.verify().unwrap();
}

#[test]
fn shapes_that_are_no_layer_are_refused() {
    let config = fp8(json!({}));
    for shape in [vec![24], vec![2, 2, 2, 3], vec![0, 6], vec![4, 0]] {
        let bytes = vec![0x38; shape.iter().product()];
        let tensors = [("a.weight".into(), Dtype::F8_E4M3, shape, bytes), layer("a")[1].clone()];
        refused(&config, &tensors, &["`a.weight`", "found F8_E4M3", "[out, in]"]);
    }
    let mut tensors = layer("a").to_vec();
    tensors.push(f32s("a.bias", &[6], &[0.0; 6]));
    refused(&config, &tensors, &["`a.bias`", "found F32 [6]", "[4]"]);
}

#[test]
fn a_layer_needs_no_name_and_a_model_no_fp8() {
    let tensors = [ones("weight", [4, 6]), f32s("weight_scale", &[], &[0.5])];
    let folder = folder(&fp8(json!({})).to_string(), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.linear("").unwrap().dequantize(), [0.5; 24]);

    let checkpoint = open(&json!({}), &[f32s("norm.weight", &[2], &[1.0, 2.0])]).unwrap();
    assert_eq!(checkpoint.format().to_string(), "not quantized: no quantized layers");
    assert_eq!(checkpoint.warnings().len(), 1);
}
