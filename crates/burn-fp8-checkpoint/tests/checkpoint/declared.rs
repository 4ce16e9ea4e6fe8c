//! What configurations may say, on checkpoints that are made here.

use std::fs;

use burn_fp8_checkpoint::{ActivationScaling, Activations, Checkpoint, Method, WeightScaling};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{GOLDENS, Tensor, f32s, folder, golden, ones};

fn open(config: &Value, tensors: &[Tensor]) -> Result<Checkpoint, String> {
    Checkpoint::open(folder(&config.to_string(), tensors).path()).map_err(|e| e.to_string())
}

fn refused(config: &Value, tensors: &[Tensor], words: &[&str]) {
    let error = open(config, tensors).map(drop).unwrap_err();
    for word in words {
        assert!(error.contains(word), "no {word} in {error}");
    }
}

fn group(weights: Value, activations: Value, targets: Value) -> Value {
    json!({ "weights": weights, "input_activations": activations, "targets": targets })
}

fn compressed(groups: Value, ignore: Value) -> Value {
    json!({ "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": groups,
        "ignore": ignore,
    } })
}

fn float(strategy: &str) -> Value {
    json!({ "num_bits": 8, "type": "float", "strategy": strategy })
}

fn fp8(fields: Value) -> Value {
    let mut config = json!({ "quant_method": "fp8" });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "quantization_config": config })
}

/// A layer with one scale of its own.
fn layer(name: &str) -> [Tensor; 2] {
    [ones(&format!("{name}.weight"), [4, 6]), f32s(&format!("{name}.weight_scale"), &[1], &[2.0])]
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        value => value.clone(),
    }
}

#[test]
fn null_means_absent() {
    for name in GOLDENS {
        let temporary = TempDir::new().unwrap();
        let config = fs::read_to_string(golden(name).join("config.json")).unwrap();
        let config = without_nulls(&serde_json::from_str(&config).unwrap());
        fs::write(temporary.path().join("config.json"), config.to_string()).unwrap();
        let model = temporary.path().join("model.safetensors");
        fs::copy(golden(name).join("model.safetensors"), model).unwrap();
        let expected = Checkpoint::open(golden(name)).unwrap();
        let checkpoint = Checkpoint::open(temporary.path()).unwrap();
        assert_eq!(checkpoint.format(), expected.format(), "{name}");
    }
    let config = fp8(json!({
        "weight_block_size": null, "activation_scheme": null, "modules_to_not_convert": null,
        "fmt": null, "scale_fmt": null,
    }));
    let checkpoint = open(&config, &layer("a")).unwrap();
    assert_eq!(checkpoint.layers()[0].weight, WeightScaling::PerTensor);
    assert_eq!(checkpoint.layers()[0].activations, ActivationScaling::PerTensor);
}

#[test]
fn names_come_before_expressions_and_these_before_the_class() {
    let groups = json!({
        "group_0": group(float("tensor"), Value::Null, json!(["Linear"])),
        "group_1": group(
            float("tensor"),
            json!({ "num_bits": 8, "type": "float", "strategy": "token", "dynamic": true }),
            json!(["re:.*\\.mlp\\.", "re:mlp"]),
        ),
        "group_2": group(
            float("tensor"),
            json!({ "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": true }),
            json!(["model.0.mlp.up"]),
        ),
    });
    let names = ["model.0.attention", "model.0.mlp.down", "model.0.mlp.up", "model.0.xmlp"];
    let tensors: Vec<_> = names.iter().flat_map(|name| layer(name)).collect();
    let checkpoint = open(&compressed(groups, Value::Null), &tensors).unwrap();
    let found: Vec<_> = checkpoint.layers().iter().map(|layer| layer.activations).collect();
    use ActivationScaling::{None, PerTensor, PerToken};
    // `re:mlp` is held against the beginning of a name, as Python's `re.match` does.
    assert_eq!(found, [None, PerToken, PerTensor, None]);
    assert_eq!(checkpoint.format().kinds.len(), 3);
}

#[test]
fn a_layer_that_no_group_is_for_is_refused() {
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["re:b\\.", "a.x"])) });
    let config = compressed(groups, Value::Null);
    refused(&config, &layer("a"), &["`a.weight`", "no group", "`Linear`"]);
}

#[test]
fn a_layer_that_is_left_out_and_yet_fp8_is_told() {
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["Linear"])) });
    let config = compressed(groups, json!(["re:lm_.*", "visual.0"]));
    let tensors: Vec<_> =
        ["lm_head", "a", "visual.0", "visual.01"].iter().flat_map(|n| layer(n)).collect();
    let checkpoint = open(&config, &tensors).unwrap();
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(
        warning.contains("`lm_head`, `visual.0`") && !warning.contains("`visual.01`"),
        "{warning}"
    );

    let config = fp8(json!({ "modules_to_not_convert": ["gate", "model.1"] }));
    let names = ["model.0.gate", "model.0.gate_up", "model.1.up", "model.10.up"];
    let tensors: Vec<_> = names.iter().flat_map(|name| layer(name)).collect();
    let checkpoint = open(&config, &tensors).unwrap();
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.contains("`model.0.gate`, `model.1.up`"), "{warning}");
    assert!(!warning.contains("gate_up") && !warning.contains("model.10"), "{warning}");
}

#[test]
fn an_expression_that_cannot_be_matched_is_told() {
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["Linear"])) });
    let config = compressed(groups, json!(["re:(?!a).*", "re:a("]));
    let checkpoint = open(&config, &layer("a")).unwrap();
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.contains("`re:(?!a).*`, `re:a(`"), "{warning}");
    assert!(warning.contains("`quantization_config.ignore`"), "{warning}");
}

#[test]
fn the_block_is_the_configurations_not_rows_divided_by_the_grid() {
    let config = fp8(json!({ "weight_block_size": [128, 128] }));
    let tensors = [ones("a.weight", [192, 1]), f32s("a.weight_scale_inv", &[2, 1], &[2.0, 3.0])];
    let layer = open_one(&config, &tensors);
    let expected: Vec<_> = (0..192).map(|row| if row < 128 { 2.0 } else { 3.0 }).collect();
    assert_eq!(layer.dequantize(), expected);
}

fn open_one(config: &Value, tensors: &[Tensor]) -> burn_fp8_checkpoint::QuantizedLinear {
    let folder = folder(&config.to_string(), tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.verify().unwrap();
    checkpoint.linear("a").unwrap()
}

#[test]
fn the_type_of_scales_is_the_tensors() {
    let block = |fields: Value| {
        let mut config = fp8(json!({ "weight_block_size": [2, 3], "scale_fmt": "ue8m0" }));
        config["quantization_config"]
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        config
    };
    let scale =
        |dtype, bytes: &[u8]| ("a.weight_scale_inv".to_owned(), dtype, vec![2, 2], bytes.to_vec());
    // 0.5, 1, 2, 4 in each of the types.
    for (dtype, bytes) in [
        (Dtype::F8_E8M0, vec![126, 127, 128, 129]),
        (Dtype::BF16, vec![0x00, 0x3F, 0x80, 0x3F, 0x00, 0x40, 0x80, 0x40]),
        (Dtype::F16, vec![0x00, 0x38, 0x00, 0x3C, 0x00, 0x40, 0x00, 0x44]),
        (Dtype::F32, [0.5_f32, 1.0, 2.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect()),
    ] {
        let layer = open_one(&block(json!({})), &[ones("a.weight", [4, 6]), scale(dtype, &bytes)]);
        assert_eq!(layer.scales().values(), [0.5, 1.0, 2.0, 4.0], "{dtype:?}");
        assert!(layer.scales().are_powers_of_two());
        let row = |a, b| [a, a, a, b, b, b];
        let expected = [row(0.5, 1.0), row(0.5, 1.0), row(2.0, 4.0), row(2.0, 4.0)].concat();
        assert_eq!(layer.dequantize(), expected, "{dtype:?}");
        assert_eq!(layer.activations(), Activations::Blocks { size: 3, power_of_two: true });
    }
    // Bytes are numbers in MXFP8 alone.
    let tensors = [ones("a.weight", [4, 6]), scale(Dtype::U8, &[126, 127, 128, 129])];
    refused(&block(json!({})), &tensors, &["`a.weight_scale_inv`", "found U8", "F8_E8M0"]);
}

#[test]
fn mxfp8_takes_e8m0_and_refuses_its_nan() {
    let mx = json!({ "num_bits": 8, "type": "float", "strategy": "group", "group_size": 32 });
    let mut config =
        compressed(json!({ "g": group(mx, Value::Null, json!(["Linear"])) }), Value::Null);
    config["quantization_config"]["format"] = json!("mxfp8-quantized");
    let scale =
        |bytes: &[u8]| ("a.weight_scale".to_owned(), Dtype::F8_E8M0, vec![2, 2], bytes.to_vec());
    let layer = open_one(&config, &[ones("a.weight", [2, 40]), scale(&[127, 128, 0, 254])]);
    assert_eq!(layer.scales().block(), [1, 32]);
    let numbers = [1.0, 2.0, 2_f32.powi(-127), 2_f32.powi(127)];
    assert_eq!(layer.scales().values(), numbers);
    assert_eq!(layer.dequantize()[31..41], [&[1.0][..], &[2.0; 8], &[2_f32.powi(-127)]].concat());

    let folder =
        folder(&config.to_string(), &[ones("a.weight", [2, 40]), scale(&[127, 255, 0, 254])]);
    let error = Checkpoint::open(folder.path()).unwrap().linear("a").unwrap_err().to_string();
    assert!(error.contains("found NaN at [0, 1]"), "{error}");

    let wrong = [ones("a.weight", [2, 40]), f32s("a.weight_scale", &[2, 2], &[1.0; 4])];
    refused(&config, &wrong, &["`a.weight_scale`", "found F32 [2, 2]", "U8 or F8_E8M0 [2, 2]"]);
    config["quantization_config"]["config_groups"]["g"]["weights"]["group_size"] = json!(16);
    refused(&config, &wrong, &["weights.group_size", "found 16", "32"]);
}

#[test]
fn autofp8_has_other_names() {
    let config = fp8(json!({ "activation_scheme": "static", "ignored_layers": ["lm_head"] }));
    let mut tensors = layer("a").to_vec();
    tensors.push(f32s("a.input_scale", &[], &[0.25]));
    assert_eq!(open_one(&config, &tensors).activations(), Activations::Static(0.25));
    tensors.push(f32s("a.weight_scale_inv", &[1], &[0.5]));
    refused(&config, &tensors, &["`a.weight_scale`", "`a.weight_scale_inv`", "one of them"]);
}

#[test]
fn a_static_scale_must_be_a_scale() {
    let config = fp8(json!({ "activation_scheme": "static" }));
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut tensors = layer("a").to_vec();
        tensors.push(f32s("a.input_scale", &[1], &[scale]));
        let folder = folder(&config.to_string(), &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        for error in [checkpoint.linear("a").unwrap_err(), checkpoint.verify().unwrap_err()] {
            assert!(error.to_string().contains("`a.input_scale`"), "{error}");
        }
    }
}

#[test]
fn verify_tells_the_place_that_reading_tells() {
    // More than is read at once.
    const ROWS: usize = 1_200_000;
    let groups = json!({ "g": group(float("channel"), Value::Null, json!(["Linear"])) });
    let mut scales = vec![1.0; ROWS];
    scales[1_100_000] = 0.0;
    let tensors = [ones("a.weight", [ROWS, 1]), f32s("a.weight_scale", &[ROWS, 1], &scales)];
    let folder = folder(&compressed(groups, Value::Null).to_string(), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    for error in [checkpoint.linear("a").unwrap_err(), checkpoint.verify().unwrap_err()] {
        assert!(error.to_string().contains("found 0 at [1100000, 0]"), "{error}");
    }
}

#[test]
fn modelopt_is_declared_in_either_file() {
    let algorithm = |name: &str| json!({ "quant_method": "modelopt", "quant_algo": name });
    let make = |config: Value, beside: Option<Value>, tensors: &[Tensor]| {
        let folder = folder(&config.to_string(), tensors);
        if let Some(beside) = beside {
            fs::write(folder.path().join("hf_quant_config.json"), beside.to_string()).unwrap();
        }
        Checkpoint::open(folder.path()).map_err(|error| error.to_string())
    };
    let beside =
        |name: &str| json!({ "quantization": { "quant_algo": name, "exclude_modules": ["a*"] } });
    let channel = [ones("a.weight", [4, 6]), f32s("a.weight_scale", &[4], &[1.0, 2.0, 3.0, 4.0])];

    let checkpoint = make(json!({}), Some(beside("FP8_PER_CHANNEL_PER_TOKEN")), &channel).unwrap();
    assert_eq!(checkpoint.format().method, Method::ModelOpt);
    assert_eq!(checkpoint.layers()[0].activations, ActivationScaling::PerToken);
    assert!(checkpoint.warnings()[0].contains("`a`"), "{:?}", checkpoint.warnings());

    let block = [ones("a.weight", [130, 6]), f32s("a.weight_scale", &[2, 1, 1, 1], &[1.0, 2.0])];
    let config = json!({ "quantization_config": algorithm("FP8_PB_WO") });
    let checkpoint = make(config.clone(), None, &block).unwrap();
    assert_eq!(checkpoint.layers()[0].weight, WeightScaling::Blocks([128, 128]));
    assert_eq!(checkpoint.layers()[0].activations, ActivationScaling::None);

    let error = make(config, Some(beside("FP8")), &block).map(drop).unwrap_err();
    for word in ["config.json", "`quantization_config.quant_algo`", "\"FP8_PB_WO\"", "\"FP8\""] {
        assert!(error.contains(word), "{error}");
    }
    let config = json!({ "quantization_config": algorithm("NVFP4") });
    refused(&config, &block, &["`quantization_config.quant_algo`", "\"NVFP4\"", "MXFP8"]);
    let config = json!({ "quantization_config": { "quant_method": "modelopt" } });
    refused(&config, &block, &["`quantization_config.quant_algo`", "no such key"]);
}

#[test]
fn the_configuration_of_the_language_model_counts() {
    let config = json!({ "text_config": fp8(json!({})) });
    assert_eq!(open(&config, &layer("a")).unwrap().format().method, Method::Fp8);
}

#[test]
fn what_is_not_read_is_refused() {
    let linear = || json!(["Linear"]);
    let with = |key: &str, value: Value| {
        let groups = json!({ "g": group(float("tensor"), Value::Null, linear()) });
        let mut config = compressed(groups, Value::Null);
        config["quantization_config"][key] = value;
        config
    };
    let weights = |weights: Value| {
        compressed(json!({ "g": group(weights, Value::Null, linear()) }), Value::Null)
    };
    let inputs = |inputs: Value| {
        compressed(json!({ "g": group(float("tensor"), inputs, linear()) }), Value::Null)
    };
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
        (weights(json!({ "num_bits": 8, "type": "int" })), ["weights.type", "int", "float"]),
        (
            weights(json!({ "num_bits": 4, "type": "float" })),
            ["weights.num_bits", "4", "num_bits 8"],
        ),
        (
            weights(json!({ "type": "float", "symmetric": false })),
            ["weights.symmetric", "false", "symmetric"],
        ),
        (
            weights(json!({ "type": "float", "dynamic": true })),
            ["weights.dynamic", "true", "false"],
        ),
        (
            weights(json!({ "type": "float", "actorder": "group" })),
            ["weights.actorder", "group", "none"],
        ),
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
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["Linear"])) });
    let mut config = compressed(groups, Value::Null);
    config["quantization_config"]["quantization_status"] = json!("frozen");
    assert_eq!(open(&config, &layer("a")).unwrap().layers().len(), 1);
    let tensors = [f32s("a.weight", &[1, 2], &[1.0, 2.0]), layer("a")[1].clone()];
    refused(&config, &tensors, &["`a.weight`", "found F32 [1, 2]", "F8_E4M3"]);
}

#[test]
fn what_a_method_calls_otherwise_is_pointed_at() {
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["Linear"])) });
    let tensors = [ones("a.weight", [4, 6]), f32s("a.weight_scale_inv", &[1], &[1.0])];
    let words = ["`a.weight_scale`", "no such tensor", "`a.weight_scale_inv`", "quant_method"];
    refused(&compressed(groups, Value::Null), &tensors, &words);
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
fn shapes_that_are_no_layer_are_refused() {
    let config = fp8(json!({}));
    for shape in [vec![24], vec![2, 2, 6], vec![0, 6], vec![4, 0]] {
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
