//! What is written, byte by byte, and read again.

use std::fs;

use burn_fp8_checkpoint::{
    ActivationScaling, Activations, Checkpoint, Dtype, Export, QuantizedLinear, Scales,
    WeightScaling,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{golden, numbers};

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

fn names(folder: &TempDir) -> Vec<String> {
    let files = fs::read_dir(folder.path()).unwrap();
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
        ("ct_tensor_static", [2, 4], &[0.5][..], Activations::Static(1.0)),
        ("ct_channel_dynamic", [1, 4], &[0.5, 2.0], Activations::PerToken),
    ] {
        let folder = TempDir::new().unwrap();
        let layer = linear([2, 4], block, scales, None, activations);
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
        assert_eq!(quantization["format"], "float-quantized");
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

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn goldens_are_written_and_read_again() {
    for name in ["ct_tensor_static", "ct_channel_dynamic", "fp8_tensor_static", "modelopt"] {
        let golden = Checkpoint::open(golden(name)).unwrap();
        let layers: Vec<_> = golden
            .layers()
            .iter()
            .map(|info| (&info.name, golden.linear(&info.name).unwrap()))
            .collect();
        let tensors: Vec<_> =
            golden.tensors().iter().map(|info| golden.tensor(&info.name).unwrap()).collect();
        let mut export = Export::new();
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
        for (name, layer) in &layers {
            assert_eq!(&written.linear(name).unwrap(), layer, "{name}");
        }
        assert_eq!(written.tensors(), golden.tensors());
        let ignored: Value = serde_json::from_str(written.config()).unwrap();
        let ignored = &ignored["quantization_config"]["ignore"];
        assert_eq!(*ignored, json!(["lm_head", "model.embed_tokens"]), "{name}");
    }
}

#[test]
fn nothing_is_replaced_and_nothing_is_left_behind() {
    let layer = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let mut export = Export::new();
    export.linear("a", &layer).unwrap();
    for taken in
        ["config.json", "model.safetensors", "model.safetensors.index.json", "hf_quant_config.json"]
    {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(taken), "before").unwrap();
        let error = export.write(folder.path(), "{}").unwrap_err().to_string();
        assert!(error.contains(taken) && error.contains("there already"), "{error}");
        assert_eq!(names(&folder), [taken]);
        assert_eq!(fs::read(folder.path().join(taken)).unwrap(), b"before");
    }
    let folder = TempDir::new().unwrap();
    for config in ["", "[]", "{\"a\":}"] {
        let error = export.write(folder.path(), config).unwrap_err().to_string();
        assert!(error.contains("JSON object"), "{error}");
    }
    assert!(names(&folder).is_empty());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(export.write(&file, "{}").unwrap_err().to_string().contains("cannot write"));
    assert!(Export::new().write(folder.path(), "{}").is_err());
    assert_eq!(names(&folder), ["file"]);
}

#[test]
fn what_the_form_does_not_have_is_refused() {
    let block = linear([4, 4], [2, 2], &[1.0; 4], None, Activations::None);
    let group = linear([2, 4], [1, 2], &[1.0; 4], None, Activations::None);
    let mx = linear([2, 4], [2, 4], &[1.0], None, Activations::Mx);
    let plain = linear([2, 2], [2, 2], &[1.0], None, Activations::None);
    let mut export = Export::new();
    let error = |result: Result<&mut Export<'_>, _>| {
        let error: burn_fp8_checkpoint::CheckpointError = result.map(drop).unwrap_err();
        error.to_string()
    };
    for layer in [&block, &group] {
        assert!(error(export.linear("a", layer)).contains("per tensor or per channel"));
    }
    assert!(error(export.linear("a", &mx)).contains("activations Mx"));
    assert!(error(export.linear("", &plain)).contains("0 bytes"));
    export.linear("a", &plain).unwrap();
    assert!(error(export.linear("a", &plain)).contains("`a`: found it twice"));
    assert!(error(export.tensor("a", Dtype::U8, &[1], &[0])).contains("it twice"));
    assert!(error(export.tensor("__metadata__", Dtype::U8, &[1], &[0])).contains("metadata"));
    assert!(error(export.tensor("b", Dtype::F32, &[2], &[0; 7])).contains("7 bytes"));
    assert!(error(export.tensor("b", Dtype::F4, &[1], &[0])).contains("F4 [1]"));
    assert!(error(export.tensor("b", Dtype::F8_E4M3, &[1], &[0])).contains("`linear`"));
    export.tensor("a.weight", Dtype::U8, &[1], &[0]).unwrap();
    let folder = TempDir::new().unwrap();
    let twice = export.write(folder.path(), "{}").unwrap_err().to_string();
    assert!(twice.contains("`a.weight`") && twice.contains("it twice"), "{twice}");
    assert!(names(&folder).is_empty());
}

#[test]
fn layers_and_scales_are_checked_when_they_are_made() {
    let scales = |values: &[f32]| Scales::new([2, 3], [1, 3], values.to_vec());
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = scales(&[1.0, wrong]).unwrap_err().to_string();
        assert!(error.contains("at [1, 0]") && error.contains("positive"), "{error}");
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
    let error = make(vec![0, 0, 0, 0xFF, 0, 0], None, none).unwrap_err().to_string();
    assert!(error.contains("0xFF, NaN, at 3"), "{error}");
    assert!(make(vec![0; 6], Some(vec![0.0; 3]), none).is_err());
    assert!(make(vec![0; 6], None, Activations::Static(0.0)).is_err());
    assert!(QuantizedLinear::new([3, 3], vec![0; 9], good, None, none).is_err());
}
