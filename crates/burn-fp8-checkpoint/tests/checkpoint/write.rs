//! What is written, byte by byte, and read again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use burn_fp8_checkpoint::{
    ActivationScaling, Activations, Checkpoint, Dtype, Export, QuantizedLinear, Scales, TensorFile,
    WeightScaling, read_file, write_file,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{assert_says, golden, numbers};

fn linear(
    shape: [usize; 2],
    block: [usize; 2],
    scales: &[f32],
    bias: Option<Vec<f32>>,
    activations: Activations,
) -> QuantizedLinear {
    let scales = Scales::new(shape, block, scales.to_vec()).unwrap();
    let codes = (0..shape[0] * shape[1]).map(|place| (place * 37 % 0x7F) as u8).collect();
    QuantizedLinear::new(shape, codes, scales, bias, activations).unwrap()
}

fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_file_has_the_tensors_that_loaders_look_for() {
    let folder = TempDir::new().unwrap();
    let up = linear([3, 5], [3, 5], &[0.5], Some(vec![1.0, -2.0, 3.0]), Activations::Static(0.25));
    let norm = [1, 2, 3, 4, 5, 6];
    let mut export = Export::new();
    export.linear("mlp.up", &up).unwrap();
    export.tensor("norm.weight", Dtype::BF16, &[3], &norm).unwrap();
    export.write(folder.path(), "{}").unwrap();
    assert_eq!(names(&folder), ["config.json", "model.safetensors"]);

    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(header % 8, 0, "data are aligned");
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    // Larger elements first, then by name.
    let expected = json!({
        "__metadata__": { "format": "pt" },
        "mlp.up.bias": { "dtype": "F32", "shape": [3], "data_offsets": [0, 12] },
        "mlp.up.input_scale": { "dtype": "F32", "shape": [1], "data_offsets": [12, 16] },
        "mlp.up.weight_scale": { "dtype": "F32", "shape": [1], "data_offsets": [16, 20] },
        "norm.weight": { "dtype": "BF16", "shape": [3], "data_offsets": [20, 26] },
        "mlp.up.weight": { "dtype": "F8_E4M3", "shape": [3, 5], "data_offsets": [26, 41] },
    });
    assert_eq!(json, expected);
    let data = &bytes[8 + header..];
    assert_eq!(numbers(&data[..20]), [1.0, -2.0, 3.0, 0.25, 0.5]);
    assert_eq!(data[20..26], norm);
    assert_eq!(&data[26..], up.codes());
    // The library of safetensors' authors takes it.
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 5);
}

/// A golden `quantization_config` without what it leaves open: null keys, versions, and how scales were observed.
fn declared(name: &str, key: &str) -> Value {
    let config = fs::read(golden(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    said(&config["quantization_config"]["config_groups"]["group_0"][key])
}

fn said(value: &Value) -> Value {
    let object = value.as_object().unwrap().iter();
    let object = object.filter(|(key, value)| !value.is_null() && *key != "observer");
    object.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[test]
fn the_configuration_is_the_one_of_compressed_tensors() {
    for (name, block, scales, activations) in [
        ("ct_tensor_static", [2, 32], &[0.5][..], Activations::Static(1.0)),
        ("ct_channel_dynamic", [1, 32], &[0.5, 2.0], Activations::PerToken),
        ("ct_block", [128, 128], &[0.3], Activations::Blocks { size: 128, power_of_two: false }),
        ("ct_mxfp8", [1, 32], &[0.5, 2.0], Activations::Mx),
    ] {
        let format = if name == "ct_mxfp8" { "mxfp8-quantized" } else { "float-quantized" };
        let folder = TempDir::new().unwrap();
        let layer = linear([2, 32], block, scales, None, activations);
        let head = [0; 16];
        let mut export = Export::new();
        export.linear("model.0", &layer).unwrap();
        export.tensor("lm_head.weight", Dtype::F16, &[2, 4], &head).unwrap();
        export.tensor("norm.weight", Dtype::F16, &[2], &[0; 4]).unwrap();
        let base = r#"{"hidden_size": 4, "quantization_config": {"quant_method": "fp8"}}"#;
        export.write(folder.path(), base).unwrap();
        let config = fs::read(folder.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["hidden_size"], 4);
        let quantization = &config["quantization_config"];
        assert_eq!(quantization["quant_method"], "compressed-tensors");
        assert_eq!(quantization["format"], format);
        assert_eq!(quantization["quantization_status"], "compressed");
        assert_eq!(quantization["ignore"], json!(["lm_head"]));
        let group = &quantization["config_groups"]["group_0"];
        assert_eq!(group["targets"], json!(["Linear"]));
        for key in ["weights", "input_activations"] {
            assert_eq!(said(&group[key]), declared(name, key), "{name} {key}");
        }
    }
}

#[test]
fn what_is_written_is_read_again_exactly() {
    let folder = TempDir::new().unwrap();
    let odd = [f32::from_bits(0x3DCC_CCCD), f32::MIN_POSITIVE, f32::from_bits(1), 3.0e38];
    let layers = [
        ("a", linear([4, 3], [4, 3], &odd[..1], None, Activations::None)),
        (
            "b.0",
            linear([4, 3], [1, 3], &odd, Some(vec![0.1, -0.0, 1e-40, 7.0]), Activations::PerToken),
        ),
        ("b.1", linear([4, 3], [4, 3], &odd[1..2], None, Activations::Static(odd[0]))),
        ("c", linear([1, 1], [1, 1], &odd[3..], Some(vec![2.0]), Activations::Static(odd[2]))),
    ];
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer).unwrap();
    }
    let bytes: Vec<u8> = (0..64).collect();
    for (name, dtype, shape) in [
        ("empty", Dtype::F32, &[0, 7][..]),
        ("f64", Dtype::F64, &[8]),
        ("scalar", Dtype::I64, &[]),
        ("u8", Dtype::U8, &[2, 2, 2]),
        ("f4", Dtype::F4, &[2, 3]),
    ] {
        let length = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
        export.tensor(name, dtype, shape, &bytes[..length]).unwrap();
    }
    export.write(folder.path().join("new/folder"), "{}").unwrap();
    let checkpoint = Checkpoint::open(folder.path().join("new/folder")).unwrap();
    checkpoint.verify().unwrap();
    assert!(checkpoint.warnings().is_empty(), "{:?}", checkpoint.warnings());
    assert_eq!(checkpoint.layers().len(), layers.len());
    for (name, layer) in &layers {
        let read = checkpoint.linear(name).unwrap();
        assert_eq!(&read, layer, "{name}");
        assert_eq!(bits(&read.dequantize()), bits(&layer.dequantize()), "{name}");
        assert_eq!(read.bias().map(bits), layer.bias().map(bits), "{name}");
    }
    let kinds: Vec<_> =
        checkpoint.layers().iter().map(|info| (info.weight, info.activations)).collect();
    let (tensor, channel) = (WeightScaling::PerTensor, WeightScaling::PerChannel);
    let expected = [
        (tensor, ActivationScaling::None),
        (channel, ActivationScaling::PerToken),
        (tensor, ActivationScaling::Static),
        (tensor, ActivationScaling::Static),
    ];
    assert_eq!(kinds, expected);
    let names: Vec<_> = checkpoint.tensors().iter().map(|info| &info.name[..]).collect();
    assert_eq!(names, ["empty", "f4", "f64", "scalar", "u8"]);
    assert_eq!(checkpoint.tensor("f4").unwrap().bytes(), [0, 1, 2]);
    assert_eq!(checkpoint.tensor("f64").unwrap().bytes(), bytes);
}

/// More of them than are read at a time.
#[test]
fn halves_are_read_with_the_bits_of_their_file() {
    let bits: Vec<u16> = (0..300_007u64).map(|i| (i * 40_503) as u16).collect();
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let (folder, shape) = (TempDir::new().unwrap(), [bits.len()]);
    let layer = linear([1, 1], [1, 1], &[1.0], None, Activations::None);
    let mut export = Export::new();
    export.linear("up", &layer).unwrap();
    for (name, dtype) in [("bf16", Dtype::BF16), ("f16", Dtype::F16)] {
        export.tensor(name, dtype, &shape, &bytes).unwrap();
    }
    export.tensor("bytes", Dtype::U8, &[2], &[1, 2]).unwrap();
    export.write(folder.path(), "{}").unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    for name in ["bf16", "f16"] {
        assert!(checkpoint.halves(name).unwrap() == bits, "{name}");
    }
    assert_says(checkpoint.halves("bytes").unwrap_err(), &["`bytes`", "U8", "BF16 or F16"]);
    assert_says(checkpoint.halves("f32").unwrap_err(), &["`f32`"]);
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Every layout that is written, from layers of every golden that has it.
#[test]
fn goldens_are_written_and_read_again() {
    for (name, is_deepseek) in [
        ("ct_tensor_static", false),
        ("ct_channel_dynamic", false),
        ("ct_block", false),
        ("ct_mxfp8", false),
        ("fp8_tensor_static", false),
        ("fp8_block", false),
        ("fp8_block", true),
        ("fp8_block_ue8m0", true),
        ("modelopt", false),
    ] {
        let golden = Checkpoint::open(golden(name)).unwrap();
        let layers: Vec<_> = golden
            .layers()
            .iter()
            .map(|info| (&info.name, golden.linear(&info.name).unwrap()))
            .collect();
        let tensors: Vec<_> =
            golden.tensors().iter().map(|info| golden.tensor(&info.name).unwrap()).collect();
        let mut export = if is_deepseek { Export::deepseek() } else { Export::new() };
        for (name, layer) in &layers {
            export.linear(name, layer).unwrap();
        }
        for tensor in &tensors {
            let info = tensor.info();
            export.tensor(&info.name, info.dtype, &info.shape, tensor.bytes()).unwrap();
        }
        let folder = TempDir::new().unwrap();
        export.write(folder.path(), golden.config()).unwrap();
        let written = Checkpoint::open(folder.path()).unwrap();
        assert!(written.warnings().is_empty(), "{:?}", written.warnings());
        for ((name, layer), info) in layers.iter().zip(golden.layers()) {
            assert_eq!(&written.linear(name).unwrap(), layer, "{name}");
            let read = written.layers().iter().find(|read| read.name == info.name).unwrap();
            assert_eq!((read.weight, read.activations), (info.weight, info.activations), "{name}");
        }
        assert_eq!(written.tensors(), golden.tensors());
        let config: Value = serde_json::from_str(written.config()).unwrap();
        let quantization = &config["quantization_config"];
        let key = if is_deepseek { "modules_to_not_convert" } else { "ignore" };
        assert_eq!(quantization[key], json!(["lm_head", "model.embed_tokens"]), "{name}");
        if is_deepseek {
            let original: Value = serde_json::from_str(golden.config()).unwrap();
            for key in ["fmt", "quant_method", "weight_block_size", "scale_fmt"] {
                let original = &original["quantization_config"][key];
                assert_eq!(quantization[key], *original, "{name}: {key}");
            }
        }
    }
}

#[test]
fn one_checkpoint_may_have_layers_of_several_forms() {
    let blocks = Activations::Blocks { size: 2, power_of_two: false };
    let layers = [
        ("a", linear([3, 4], [2, 2], &[0.5, 0.3, 3.0, 1.0], None, blocks)),
        (
            "b",
            linear(
                [2, 64],
                [1, 32],
                &[0.5, 2.0, 2_f32.powi(-127), 2_f32.powi(127)],
                None,
                Activations::Mx,
            ),
        ),
        ("c", linear([2, 64], [1, 32], &[0.5, 0.3, 1.0, 2.0], None, Activations::None)),
        // A block that is as large as the weight is a block to activations of blocks.
        ("d", linear([2, 2], [2, 2], &[0.7], None, blocks)),
        ("e", linear([2, 4], [1, 4], &[0.7, 0.1], Some(vec![1.0, 2.0]), Activations::PerToken)),
    ];
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer).unwrap();
    }
    let folder = TempDir::new().unwrap();
    export.write(folder.path(), "{}").unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    for (name, layer) in &layers {
        assert_eq!(&checkpoint.linear(name).unwrap(), layer, "{name}");
    }
    let config: Value = serde_json::from_str(checkpoint.config()).unwrap();
    let quantization = &config["quantization_config"];
    assert_eq!(quantization["format"], "mixed-precision");
    let groups = quantization["config_groups"].as_object().unwrap();
    let formats: Vec<_> = groups.values().map(|group| group["format"].as_str().unwrap()).collect();
    let is_mx = |format: &&&str| **format == "mxfp8-quantized";
    assert_eq!((formats.len(), formats.iter().filter(is_mx).count()), (4, 1));
    // E8M0 in bytes.
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("b.weight_scale").unwrap().data(), [126, 128, 0, 254]);
}

#[test]
fn what_a_form_has_no_word_for_is_refused() {
    let blocks = |power_of_two| Activations::Blocks { size: 2, power_of_two };
    let refused = |mut export: Export<'static>, layer: QuantizedLinear, words: &[&str]| {
        let layer = Box::leak(Box::new(layer));
        assert_says(export.linear("a", layer).unwrap_err(), words);
    };
    let powers = linear([2, 2], [2, 2], &[0.5], None, blocks(true));
    refused(Export::new(), powers, &["powers of two", "Export::deepseek"]);
    let tensor = linear([2, 2], [2, 2], &[0.5], None, Activations::PerTensor);
    refused(Export::new(), tensor, &["dynamic, per tensor"]);
    for scale in [0.3, 2_f32.powi(-128)] {
        let scales = [scale, 1.0];
        let mx = linear([1, 64], [1, 32], &scales, None, Activations::Mx);
        refused(Export::new(), mx, &["MXFP8 weights"]);
    }
    let wide = linear([2, 4], [2, 4], &[0.5], None, blocks(false));
    refused(Export::deepseek(), wide, &["per 2×4 block", "as many columns"]);
    let channel = linear([2, 4], [1, 4], &[0.5, 1.0], None, Activations::PerToken);
    refused(Export::deepseek(), channel, &["scales of blocks"]);
    let [first, second] =
        [1, 2].map(|rows| linear([2, 4], [rows, 2], &[0.5; 4][..4 / rows], None, blocks(false)));
    let mut export = Export::deepseek();
    export.linear("a", &first).unwrap();
    assert_says(
        export.linear("b", &second).unwrap_err(),
        &["per 2×2", "scheme of the other layers", "per 1×2"],
    );
}

#[test]
fn nothing_is_replaced_and_nothing_is_left_behind() {
    let layer = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let mut export = Export::new();
    export.linear("a", &layer).unwrap();
    let refused = |folder: &Path, config: &str, words: &[&str]| {
        assert_says(export.write(folder, config).unwrap_err(), words);
    };
    let temporary = TempDir::new().unwrap();
    let folder = temporary.path().join("model");
    for taken in ["config.json", "model.safetensors.index.json", "notes"] {
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(taken), "before").unwrap();
        refused(&folder, "{}", &[taken, "there already", "new or empty"]);
        assert_eq!(fs::read(folder.join(taken)).unwrap(), b"before");
        assert_eq!(names(&temporary), ["model"]);
        fs::remove_dir_all(&folder).unwrap();
    }
    for config in ["", "[]", "{\"a\":}"] {
        refused(&folder, config, &["JSON object"]);
    }
    let file = temporary.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&file, "{}", &["cannot write"]);
    assert!(Export::new().write(&folder, "{}").is_err());
    // What the reader would not take.
    for (name, shape, words) in [
        ("b.weight_scale", &[1][..], ["`b.weight_scale`", "without `b.weight`"]),
        ("b", &[1; 17], ["`b`", "no more than 16"]),
    ] {
        let mut export = Export::new();
        export.linear("a", &layer).unwrap().tensor(name, Dtype::U8, shape, &[0]).unwrap();
        assert_says(export.write(&folder, "{}").unwrap_err(), &words);
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(126), "]".repeat(126));
    refused(&folder, &deep.replace('1', "[1]"), &["recursion limit"]);
    let mut export = Export::new();
    let other = linear([2, 2], [2, 2], &[1.0], None, Activations::PerToken);
    export.linear("a", &layer).unwrap().linear("re:b", &other).unwrap();
    assert_says(export.write(&folder, "{}").unwrap_err(), &["`re:b.weight`", "no group"]);
    assert_eq!(names(&temporary), ["file"]);
}

#[test]
fn what_an_interrupted_write_left_is_replaced() {
    let layer = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let mut export = Export::new();
    export.linear("a", &layer).unwrap().file("tokenizer.json", b"tokens").unwrap();
    let temporary = TempDir::new().unwrap();
    let [folder, partial] = ["model", "model.partial"].map(|name| temporary.path().join(name));
    for stale in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join(stale), "stale").unwrap();
        export.write(&folder, "{}").unwrap();
        assert_eq!(names(&temporary), ["model"]);
        assert_eq!(names(&folder), ["config.json", "model.safetensors", "tokenizer.json"]);
        assert_eq!(fs::read(folder.join("tokenizer.json")).unwrap(), b"tokens");
        Checkpoint::open(&folder).unwrap().verify().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
    // What a write does not leave is somebody's.
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("notes"), "mine").unwrap();
    assert_says(export.write(&folder, "{}").unwrap_err(), &["model.partial", "cannot write"]);
    assert_eq!(names(&partial), ["notes"]);
    fs::remove_dir_all(&partial).unwrap();
    fs::write(&partial, "mine").unwrap();
    assert_says(export.write(&folder, "{}").unwrap_err(), &["model.partial", "no folder"]);
    assert_eq!(names(&temporary), ["model.partial"]);
}

/// Tensors without a configuration, as adapters are.
#[test]
fn one_file_stands_for_itself() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("adapters");
    let numbers: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensors =
        [("a", Dtype::U8, &[3][..], &[7, 8, 9][..]), ("b", Dtype::F32, &[2, 1], &numbers)];
    TensorFile::write(&path, tensors).unwrap();
    let whole = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&whole).unwrap();
    assert_eq!(file.tensor("a").unwrap().data(), [7, 8, 9]);
    let file = TensorFile::open(&path).unwrap();
    let infos = file.tensors().map(|info| (&info.name[..], info.dtype, &info.shape[..]));
    assert_eq!(
        infos.collect::<Vec<_>>(),
        tensors.map(|(name, dtype, shape, _)| (name, dtype, shape))
    );
    assert_eq!(file.tensor("b").unwrap().unwrap().to_f32().unwrap(), [1.5, -2.0]);
    assert!(file.tensor("c").unwrap().is_none());
    for (name, length, words) in
        [("a", 3, "it twice"), ("__metadata__", 3, "it twice"), ("c", 2, "2 bytes")]
    {
        let bad = (name, Dtype::U8, &[3][..], &[0; 3][..length]);
        assert_says(
            TensorFile::write(&path, tensors.into_iter().chain([bad])).unwrap_err(),
            &[words],
        );
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    let length = whole.len() as u64;
    assert_eq!(read_file(&path, length).unwrap(), whole);
    assert_eq!(read_file(&path, length - 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(read_file(folder.path(), length).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(write_file(folder.path(), &whole).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(names(&folder), ["adapters"]);
}

#[test]
fn files_beside_weights_have_names_of_their_own() {
    let mut export = Export::new();
    export.file("a", b"").unwrap();
    for name in ["a", "", ".", "..", "b/c", "/b", "config.json", "model.safetensors"] {
        assert_says(export.file(name, b"").unwrap_err(), &["a file to write", "another file"]);
    }
    export.file("model.safetensors.index.json", b"").unwrap_err();
}

/// A process that writes one folder after the other is killed: each folder is whole or is not there, and what was interrupted can be written again.
#[cfg(unix)]
#[test]
fn a_killed_write_leaves_nothing_or_all() {
    const FOLDER: &str = "BURN_FP8_CHECKPOINT_TEST_WRITE";
    let layer = linear([2048, 2048], [1, 2048], &[1.0; 2048], None, Activations::PerToken);
    let mut export = Export::new();
    export.linear("a", &layer).unwrap();
    if let Ok(folder) = std::env::var(FOLDER) {
        for place in 0.. {
            export.write(Path::new(&folder).join(place.to_string()), "{}").unwrap();
        }
    }
    let (mut whole, mut interrupted) = (0, 0);
    for wait in [0, 1, 3, 7, 13, 29, 53, 71] {
        let temporary = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "write::a_killed_write_leaves_nothing_or_all"]);
        let mut child = child.env(FOLDER, temporary.path()).stdout(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while names(&temporary).is_empty() && start.elapsed().as_secs() < 60 {}
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        for name in names(&temporary) {
            let folder = temporary.path().join(name.trim_end_matches(".partial"));
            if name.ends_with(".partial") {
                interrupted += 1;
                export.write(&folder, "{}").unwrap();
            }
            let checkpoint = Checkpoint::open(&folder).unwrap();
            assert!(checkpoint.linear("a").unwrap() == layer, "{name}");
            whole += 1;
        }
        assert!(names(&temporary).iter().all(|name| !name.ends_with(".partial")));
    }
    assert!(whole >= 8 && interrupted > 0, "{whole} {interrupted}");
}

#[test]
fn the_rest_of_a_configuration_is_written_as_it_was() {
    let temporary = TempDir::new().unwrap();
    let layer = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let base = r#"{"a":[NaN,Infinity,-Infinity,1.0000000000000002,1e-05],"b":"NaN","c":{"NaN":NaN},"d":"~NaN \u007e~Infinity"}"#;
    let folder = temporary.path().join("model");
    let mut export = Export::new();
    export.linear("a", &layer).unwrap();
    export.tensor("~NaN.weight", Dtype::U8, &[1, 1], &[0]).unwrap().write(&folder, base).unwrap();
    let written = fs::read_to_string(folder.join("config.json")).unwrap();
    let written: String = written.split_whitespace().collect();
    let expected = r#"{"a":[NaN,Infinity,-Infinity,1.0000000000000002,0.00001],"b":"NaN","c":{"NaN":NaN},"d":"~NaN~~Infinity","quantization_config":"#;
    assert!(written.starts_with(expected), "{written}");
    assert!(written.contains(r#""ignore":["lm_head","~NaN"]"#), "{written}");
    assert_eq!(Checkpoint::open(&folder).unwrap().layers().len(), 1);
}

#[test]
fn what_the_form_does_not_have_is_refused() {
    let mx = linear([2, 4], [2, 4], &[1.0], None, Activations::Mx);
    let plain = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let mut export = Export::new();
    assert_says(export.linear("a", &mx).unwrap_err(), &["MXFP8 weights"]);
    assert_says(export.linear("", &plain).unwrap_err(), &["0 bytes"]);
    export.linear("a", &plain).unwrap();
    assert_says(export.linear("a", &plain).unwrap_err(), &["`a`: found it twice"]);
    for (name, dtype, shape, bytes, expected) in [
        ("a", Dtype::U8, &[1], 1, "it twice"),
        ("__metadata__", Dtype::U8, &[1], 1, "metadata"),
        ("b", Dtype::F32, &[2], 7, "7 bytes"),
        ("b", Dtype::F4, &[1], 1, "F4 [1]"),
        ("b", Dtype::F8_E4M3, &[1], 1, "`linear`"),
    ] {
        let bytes = &[0; 7][..bytes];
        assert_says(export.tensor(name, dtype, shape, bytes).unwrap_err(), &[expected]);
    }
    export.tensor("a.weight", Dtype::U8, &[1], &[0]).unwrap();
    let folder = TempDir::new().unwrap();
    assert_says(export.write(&folder, "{}").unwrap_err(), &["`a.weight`", "it twice"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn layers_and_scales_are_checked_when_they_are_made() {
    let scales = |values: &[f32]| Scales::new([2, 3], [1, 3], values.to_vec());
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_says(scales(&[1.0, wrong]).unwrap_err(), &["at [1, 0]", "positive"]);
    }
    assert!(scales(&[1.0]).unwrap_err().to_string().contains("found 1 scales; expected 2 × 1"));
    assert!(Scales::new([2, 0], [1, 1], vec![]).is_err());
    assert!(Scales::new([2, 2], [0, 1], vec![1.0]).is_err());
    assert_eq!(Scales::new([3, 3], [2, 2], vec![1.0; 4]).unwrap().grid(), [2, 2]);

    let good = scales(&[1.0, 2.0]).unwrap();
    let make = |codes: Vec<u8>, bias, activations| {
        QuantizedLinear::new([2, 3], codes, good.clone(), bias, activations)
    };
    let none = Activations::None;
    assert!(make(vec![0; 6], None, none).is_ok());
    assert!(make(vec![0; 5], None, none).unwrap_err().to_string().contains("5 codes"));
    assert_says(make(vec![0, 0, 0, 0xFF, 0, 0], None, none).unwrap_err(), &["0xFF, NaN, at 3"]);
    assert!(make(vec![0; 6], Some(vec![0.0; 3]), none).is_err());
    assert!(make(vec![0; 6], None, Activations::Static(0.0)).is_err());
    assert!(QuantizedLinear::new([3, 3], vec![0; 9], good, None, none).is_err());
}
