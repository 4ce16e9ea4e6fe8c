//! What configurations may say, on checkpoints that are made here.

use std::fs;

use burn_fp8_checkpoint::{ActivationScaling, Activations, Checkpoint, Method, WeightScaling};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{GOLDENS, Tensor, assert_says, f32s, folder, golden, ones, refusal};

pub fn open(config: &Value, tensors: &[Tensor]) -> Result<Checkpoint, String> {
    Checkpoint::open(folder(&config.to_string(), tensors).path()).map_err(|e| e.to_string())
}

pub fn refused(config: &Value, tensors: &[Tensor], words: &[&str]) {
    assert_says(open(config, tensors).map(drop).unwrap_err(), words);
}

pub fn group(weights: Value, activations: Value, targets: Value) -> Value {
    json!({ "weights": weights, "input_activations": activations, "targets": targets })
}

pub fn compressed(groups: Value, ignore: Value) -> Value {
    json!({ "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": groups,
        "ignore": ignore,
    } })
}

/// One group, of all layers.
pub fn linear(weights: Value, activations: Value, ignore: Value) -> Value {
    compressed(json!({ "g": group(weights, activations, json!(["Linear"])) }), ignore)
}

pub fn float(strategy: &str) -> Value {
    json!({ "num_bits": 8, "type": "float", "strategy": strategy })
}

pub fn fp8(fields: Value) -> Value {
    let mut config = json!({ "quant_method": "fp8" });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "quantization_config": config })
}

/// A layer with one scale of its own.
pub fn layer(name: &str) -> [Tensor; 2] {
    [ones(&format!("{name}.weight"), [4, 6]), f32s(&format!("{name}.weight_scale"), &[1], &[2.0])]
}

/// The warning of a checkpoint that has one.
pub fn warning(checkpoint: &Checkpoint) -> &str {
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    warning
}

/// Without keys that are null, but for the one where that says something.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(key, value)| !value.is_null() || *key == "weight_block_size")
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

/// Groups of these targets, which differ in what they say of activations.
fn groups(targets: &[&[&str]]) -> Value {
    let dynamic = |strategy: &str| json!({ "num_bits": 8, "type": "float", "strategy": strategy, "dynamic": true });
    let activations = [Value::Null, dynamic("token"), dynamic("tensor")];
    let groups = targets.iter().zip(activations).enumerate();
    groups
        .map(|(place, (targets, activations))| {
            (format!("group_{place}"), group(float("tensor"), activations, json!(targets)))
        })
        .collect()
}

#[test]
fn names_come_before_expressions_and_these_before_the_class() {
    let lists = [&["Linear"][..], &["re:.*\\.mlp\\.", "re:mlp"], &["model.0.mlp.up"]];
    let names = ["model.0.attention", "model.0.mlp.down", "model.0.mlp.up", "model.0.xmlp"];
    let tensors: Vec<_> = names.iter().flat_map(|name| layer(name)).collect();
    let checkpoint = open(&compressed(groups(&lists), Value::Null), &tensors).unwrap();
    let found: Vec<_> = checkpoint.layers().iter().map(|layer| layer.activations).collect();
    use ActivationScaling::{None, PerTensor, PerToken};
    // `re:mlp` is held against the beginning of a name, as Python's `re.match` does.
    assert_eq!(found, [None, PerToken, PerTensor, None]);
    assert_eq!(checkpoint.format().kinds.len(), 3);
}

#[test]
fn of_targets_in_several_groups_the_first_by_their_text_counts() {
    // Which group `match_targets` of compressed-tensors 0.20 gives to a layer `model.0.mlp.up`, by running it.
    for (lists, expected) in [
        ([&["re:.*up"][..], &["re:.*mlp"]], 1),
        ([&["re:.*mlp"], &["re:.*up"]], 0),
        ([&["Linear"], &["re:.*up"]], 1),
        ([&["re:.*up"], &["model.0.mlp.up"]], 1),
        ([&["Module"], &["Linear"]], 1),
        ([&["Linear"], &["Module"]], 0),
        ([&["re:mlp", "Linear"], &["re:model"]], 1),
        ([&["re:model\\.0"], &["re:model.*"]], 1),
        ([&["Module"], &["re:up"]], 0),
    ] {
        let config = compressed(groups(&lists), Value::Null);
        let found = open(&config, &layer("model.0.mlp.up")).unwrap().layers()[0].activations;
        let both = [ActivationScaling::None, ActivationScaling::PerToken];
        assert_eq!(found, both[expected], "{lists:?}");
    }
    // The library takes the group that comes last in the file.
    let twice = compressed(groups(&[&["Linear", "a"], &["a"]]), Value::Null);
    refused(&twice, &layer("a"), &["`quantization_config.config_groups`", "`a` in one group"]);
    let unread = compressed(groups(&[&["Linear"], &["re:(?!a)"]]), Value::Null);
    refused(&unread, &layer("a"), &["config_groups`", "`re:(?!a)`", "names of layers instead"]);
    // Groups that say the same need not be told from each other.
    let mut same = compressed(groups(&[&["Linear"], &["re:(?!a)", "Linear"]]), Value::Null);
    same["quantization_config"]["config_groups"]["group_1"]["input_activations"] = Value::Null;
    assert!(open(&same, &layer("a")).unwrap().warnings()[0].contains("`re:(?!a)`"));
}

#[test]
fn a_layer_that_no_group_is_for_is_refused() {
    let groups = json!({ "g": group(float("tensor"), Value::Null, json!(["re:b\\.", "a.x"])) });
    let config = compressed(groups, Value::Null);
    refused(&config, &layer("a"), &["`a.weight`", "no group", "`Linear`"]);
}

#[test]
fn a_layer_that_is_left_out_and_yet_fp8_is_told() {
    let ignore = json!(["re:lm_.*", "visual.0"]);
    let config = linear(float("tensor"), Value::Null, ignore);
    let tensors: Vec<_> =
        ["lm_head", "a", "visual.0", "visual.01"].iter().flat_map(|n| layer(n)).collect();
    let checkpoint = open(&config, &tensors).unwrap();
    assert_says(warning(&checkpoint), &["`lm_head`, `visual.0`"]);
    assert!(!warning(&checkpoint).contains("`visual.01`"));

    let config = fp8(json!({ "modules_to_not_convert": ["gate", "model.1"] }));
    let names = ["model.0.gate", "model.0.gate_up", "model.1.up", "model.10.up"];
    let tensors: Vec<_> = names.iter().flat_map(|name| layer(name)).collect();
    let checkpoint = open(&config, &tensors).unwrap();
    let warning = warning(&checkpoint);
    assert_says(warning, &["`model.0.gate`, `model.1.up`"]);
    assert!(!warning.contains("gate_up") && !warning.contains("model.10"), "{warning}");
}

#[test]
fn an_expression_that_cannot_be_matched_is_told() {
    let ignore = json!(["re:(?!a).*", "re:a("]);
    let config = linear(float("tensor"), Value::Null, ignore);
    let checkpoint = open(&config, &layer("a")).unwrap();
    assert_says(warning(&checkpoint), &["`re:(?!a).*`, `re:a(`", "`quantization_config.ignore`"]);
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
fn blocks_without_a_size_are_those_of_transformers() {
    let [rows, columns] = [192, 130];
    let weight = || ones("a.weight", [rows, columns]);
    let grid = |name: &str| f32s(&format!("a.{name}"), &[2, 2], &[2.0, 3.0, 4.0, 5.0]);
    let one = |name: &str| f32s(&format!("a.{name}"), &[], &[2.0]);
    let (missing, null) = (fp8(json!({})), fp8(json!({ "weight_block_size": null })));
    let layer = open_one(&missing, &[weight(), grid("weight_scale_inv")]);
    assert_eq!(layer.scales().block(), [128, 128]);
    let expected = |place: usize| match (place / columns < 128, place % columns < 128) {
        (true, true) => 2.0,
        (true, false) => 3.0,
        (false, true) => 4.0,
        (false, false) => 5.0,
    };
    let expected: Vec<f32> = (0..rows * columns).map(expected).collect();
    assert_eq!(layer.dequantize(), expected);
    assert_eq!(layer.activations(), Activations::Blocks { size: 128, power_of_two: false });
    // AutoFP8 and vLLM mean one scale, and null is one to transformers, too.
    for (config, name) in
        [(&missing, "weight_scale"), (&missing, "weight_scale_inv"), (&null, "weight_scale_inv")]
    {
        let layer = open_one(config, &[weight(), one(name)]);
        assert_eq!(layer.scales().grid(), [1, 1], "{name}");
        assert_eq!(layer.activations(), Activations::PerTensor, "{name}");
    }
    refused(&null, &[weight(), grid("weight_scale_inv")], &["found F32 [2, 2]", "[] or [1]"]);
    refused(&missing, &[weight(), grid("weight_scale")], &["found F32 [2, 2]", "[] or [1]"]);
}

#[test]
fn a_block_structure_may_be_a_text() {
    let config = |structure: Value| {
        let mut weights = float("block");
        weights["block_structure"] = structure;
        linear(weights, Value::Null, Value::Null)
    };
    let tensors = [ones("a.weight", [4, 6]), f32s("a.weight_scale", &[2, 2], &[1.0; 4])];
    for structure in [json!("2x3"), json!([2, 3])] {
        assert_eq!(open_one(&config(structure), &tensors).scales().block(), [2, 3]);
    }
    for wrong in ["2", "2x0", "2x-3", "2x3x4", "x", "", "2X3", "2x99999999999999999999"] {
        let words =
            ["`quantization_config.config_groups.g.weights.block_structure`", "\"128x128\""];
        refused(&config(json!(wrong)), &tensors, &words);
    }
}

#[test]
fn numbers_that_are_not_finite_are_read_as_python_writes_them() {
    let config = |model: &str, block: &str| {
        let method = r#""quantization_config": {"quant_method": "fp8", "weight_block_size": "#;
        format!("{{{model}, {method}{block}}}}}")
    };
    let words = r#""a": [NaN, Infinity, -Infinity], "b": "NaN, \"Infinity\\", "c": {"NaN": NaN}"#;
    let folder = folder(&config(words, "null"), &layer("a"));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config(), config(words, "null"));
    for (model, block, expected) in [
        (words, "Infinity", "\"Infinity\"; expected two positive integers"),
        ("\"a\": Inf", "null", "cannot be read"),
        ("\"a\": -NaN", "null", "cannot be read"),
        ("\"a\": \"b\"NaN", "null", "cannot be read"),
        ("\"a\": 1Infinity", "null", "cannot be read"),
        ("\"a\": \"NaN", "null", "cannot be read"),
    ] {
        fs::write(folder.path().join("config.json"), config(model, block)).unwrap();
        assert_says(refusal(folder.path()), &["config.json", expected]);
    }
}

#[test]
fn the_type_of_scales_is_the_tensors() {
    let config = fp8(json!({ "weight_block_size": [2, 3], "scale_fmt": "ue8m0" }));
    let scale =
        |dtype, bytes: &[u8]| ("a.weight_scale_inv".to_owned(), dtype, vec![2, 2], bytes.to_vec());
    // 0.5, 1, 2, 4 in each of the types.
    for (dtype, bytes) in [
        (Dtype::F8_E8M0, vec![126, 127, 128, 129]),
        (Dtype::BF16, vec![0x00, 0x3F, 0x80, 0x3F, 0x00, 0x40, 0x80, 0x40]),
        (Dtype::F16, vec![0x00, 0x38, 0x00, 0x3C, 0x00, 0x40, 0x00, 0x44]),
        (Dtype::F32, [0.5_f32, 1.0, 2.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect()),
    ] {
        let layer = open_one(&config, &[ones("a.weight", [4, 6]), scale(dtype, &bytes)]);
        assert_eq!(layer.scales().values(), [0.5, 1.0, 2.0, 4.0], "{dtype:?}");
        assert!(layer.scales().are_powers_of_two());
        let row = |a, b| [a, a, a, b, b, b];
        let expected = [row(0.5, 1.0), row(0.5, 1.0), row(2.0, 4.0), row(2.0, 4.0)].concat();
        assert_eq!(layer.dequantize(), expected, "{dtype:?}");
        assert_eq!(layer.activations(), Activations::Blocks { size: 3, power_of_two: true });
    }
    // Bytes are numbers in MXFP8 alone.
    let tensors = [ones("a.weight", [4, 6]), scale(Dtype::U8, &[126, 127, 128, 129])];
    refused(&config, &tensors, &["`a.weight_scale_inv`", "found U8", "F8_E8M0"]);
}

#[test]
fn mxfp8_takes_e8m0_and_refuses_its_nan() {
    let mx = json!({ "num_bits": 8, "type": "float", "strategy": "group", "group_size": 32 });
    let mut config = linear(mx, Value::Null, Value::Null);
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
    assert_says(
        Checkpoint::open(folder.path()).unwrap().linear("a").unwrap_err(),
        &["found NaN at [0, 1]"],
    );

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
    let config = linear(float("channel"), Value::Null, Value::Null);
    let mut scales = vec![1.0; ROWS];
    scales[1_100_000] = 0.0;
    let tensors = [ones("a.weight", [ROWS, 1]), f32s("a.weight_scale", &[ROWS, 1], &scales)];
    let folder = folder(&config.to_string(), &tensors);
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
    let words = ["config.json", "`quantization_config.quant_algo`", "\"FP8_PB_WO\"", "\"FP8\""];
    assert_says(error, &words);
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

/// What a configuration of a version to come says is told by name; what is off says nothing.
#[test]
fn keys_that_are_not_known() {
    let set = |mut config: Value, pointer: &str, key: &str, value: Value| {
        config.pointer_mut(pointer).expect(pointer)[key] = value;
        config
    };
    let of_group = "/quantization_config/config_groups/g";
    let compressed = linear(float("tensor"), Value::Null, json!([]));
    for (config, pointer) in [
        (&compressed, "/quantization_config"),
        (&compressed, of_group),
        (&compressed, "/quantization_config/config_groups/g/weights"),
        (&fp8(json!({})), "/quantization_config"),
        (
            &json!({ "quantization_config": { "quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN" } }),
            "/quantization_config",
        ),
    ] {
        let layer = [ones("a.weight", [1, 6]), f32s("a.weight_scale", &[1], &[2.0])];
        for off in [Value::Null, json!(false), json!([]), json!({})] {
            let checkpoint = open(&set(config.clone(), pointer, "rotation", off), &layer).unwrap();
            assert!(checkpoint.warnings().is_empty(), "{:?}", checkpoint.warnings());
        }
        for on in [json!(true), json!("hadamard"), json!({ "size": 64 })] {
            let checkpoint = open(&set(config.clone(), pointer, "rotation", on), &layer).unwrap();
            assert_says(warning(&checkpoint), &["config.json", "not known", "`rotation`"]);
        }
    }
    // What is known, and not done.
    let outputs = set(compressed, of_group, "output_activations", float("tensor"));
    refused(&outputs, &layer("a"), &["output_activations", "null"]);
}
