//! Files that were cut or changed somewhere: errors, never a panic.

use std::fs;
use std::ops::Range;
use std::path::Path;

use burn_fp8_checkpoint::Checkpoint;
use burn_fp8_test_support::Random;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{GOLDENS, assert_says, golden};

/// Copies a golden checkpoint and returns its configuration and its tensors' file.
fn copy(name: &str, folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let read = |file| fs::read(golden(name).join(file)).unwrap();
    let (config, model) = (read("config.json"), read("model.safetensors"));
    fs::write(folder.join("config.json"), &config).unwrap();
    fs::write(folder.join("model.safetensors"), &model).unwrap();
    (config, model)
}

/// Opens a checkpoint and reads all of it. Returns whether it could be opened.
fn exercise(folder: &Path) -> bool {
    match Checkpoint::open(folder) {
        Ok(checkpoint) => {
            let _ = checkpoint.verify();
            let mut bytes = 0;
            for layer in checkpoint.layers() {
                bytes += layer.bytes;
                if let Ok(layer) = checkpoint.linear(&layer.name) {
                    assert_eq!(layer.dequantize().len(), layer.shape()[0] * layer.shape()[1]);
                }
            }
            for tensor in checkpoint.tensors() {
                bytes += tensor.bytes;
                let _ = checkpoint.tensor(&tensor.name).unwrap().to_f32();
            }
            let file = fs::metadata(folder.join("model.safetensors")).unwrap().len();
            assert!(bytes <= file - 8, "{bytes} bytes of tensors in a file of {file}");
            let _ = (checkpoint.format().to_string(), checkpoint.warnings().join(" "));
            true
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 3000 && !message.contains('\n'), "{message}");
            false
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = TempDir::new().unwrap();
    let (_, model) = copy("ct_tensor_static", folder.path());
    let header = 8 + u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let places = (0..=header).chain((header..model.len()).step_by(499)).chain([model.len() - 1]);
    for place in places {
        fs::write(folder.path().join("model.safetensors"), &model[..place]).unwrap();
        assert!(!exercise(folder.path()), "cut to {place} bytes");
    }
    let longer = [&model[..], &[0]].concat();
    fs::write(folder.path().join("model.safetensors"), longer).unwrap();
    assert!(!exercise(folder.path()), "one byte more");
    fs::write(folder.path().join("model.safetensors"), &model).unwrap();
    assert!(exercise(folder.path()), "whole");
}

#[test]
fn a_file_cut_after_it_was_opened_is_an_error() {
    let folder = TempDir::new().unwrap();
    let (_, model) = copy("ct_tensor_static", folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors"));
    file.unwrap().set_len(model.len() as u64 - 1).unwrap();
    assert_says(
        checkpoint.linear("model.layers.0.self_attn.v_proj").unwrap_err(),
        &["model.safetensors", "end of the file"],
    );
}

/// Copies of goldens in whose file some bytes of a range are others, of this alphabet or of any kind. Returns how many could be opened.
fn changed(
    goldens: &[&str],
    file: &str,
    range: impl Fn(&[u8]) -> Range<usize>,
    copies: usize,
    most: usize,
    alphabet: &[u8],
) -> usize {
    let mut random = Random(20250104);
    let mut opened = 0;
    for name in goldens {
        let folder = TempDir::new().unwrap();
        let (config, model) = copy(name, folder.path());
        let bytes = if file == "config.json" { config } else { model };
        let range = range(&bytes);
        for _ in 0..copies {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(most) {
                let place = range.start + random.below(range.len());
                changed[place] = match random.below(3) {
                    0 => changed[place] ^ (1 << random.below(8)),
                    1 => random.pick(alphabet),
                    _ => random.bits() as u8,
                };
            }
            fs::write(folder.path().join(file), changed).unwrap();
            opened += usize::from(exercise(folder.path()));
        }
    }
    opened
}

#[test]
fn changed_bytes_are_no_panic() {
    let header = |bytes: &[u8]| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        0..8 + length as usize
    };
    let model = "model.safetensors";
    changed(&GOLDENS, model, header, 250, 3, b"0123456789,:\"[]{}.-");
    let whole = |bytes: &[u8]| 0..bytes.len();
    changed(&GOLDENS, "config.json", whole, 250, 4, b"0123456789,:\"[]{}.-*(\\");
    let data = |bytes: &[u8]| header(bytes).end..bytes.len();
    let opened = changed(&["ct_mxfp8"], model, data, 100, 200, b"\0\x7F\xFF");
    assert_eq!(opened, 100, "headers and shapes are as they were");
}

/// A value of any kind, or one that may stand where a configuration has it.
fn value(random: &mut Random, depth: usize) -> Value {
    const TEXTS: &str = "compressed-tensors fp8 modelopt float-quantized mxfp8-quantized tensor channel block \
        group token float int static dynamic ue8m0 e4m3 FP8 MXFP8 FP8_PB_WO Linear re:.* \
        re:((a*)*)*b re:[ * lm_head local compressed";
    let mut texts: Vec<_> = TEXTS.split(' ').collect();
    texts.extend(["", "\u{1b}[2J"]);
    match random.below(if depth > 6 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(random.pick(&[0, 1, 8, 32, 128, -1, i64::MIN, i64::MAX])),
        3 => json!(random.pick(&[u64::MAX as f64, 0.5, -1e300, 128.0])),
        4 | 5 => json!(random.pick(&texts)),
        6 => (0..random.below(4)).map(|_| value(random, depth + 1)).collect(),
        _ => object(random, depth + 1),
    }
}

fn object(random: &mut Random, depth: usize) -> Value {
    const KEYS: &str = "quant_method format config_groups group_0 weights input_activations targets ignore \
        num_bits type strategy group_size block_structure dynamic symmetric actorder \
        weight_block_size activation_scheme modules_to_not_convert scale_fmt fmt quant_algo \
        exclude_modules sparsity_config transform_config kv_cache_scheme quantization_status";
    let keys: Vec<_> = KEYS.split(' ').collect();
    (0..1 + random.below(8))
        .map(|_| (random.pick(&keys).to_owned(), value(random, depth)))
        .collect()
}

#[test]
fn random_configurations_are_no_panic() {
    let mut random = Random(99);
    let mut opened = 0;
    for name in ["ct_tensor_static", "fp8_block", "modelopt"] {
        let folder = TempDir::new().unwrap();
        let (config, _) = copy(name, folder.path());
        let config: Value = serde_json::from_slice(&config).unwrap();
        for _ in 0..1000 {
            let mut config = config.clone();
            let quantization = config["quantization_config"].as_object_mut().unwrap();
            match random.below(4) {
                0 => config["quantization_config"] = object(&mut random, 0),
                1 => {
                    let Value::Object(more) = object(&mut random, 0) else { unreachable!() };
                    quantization.extend(more);
                }
                _ => {
                    // One value somewhere becomes another.
                    let place = random.below(quantization.len());
                    let key = quantization.keys().nth(place).unwrap().clone();
                    quantization[&key] = value(&mut random, 0);
                }
            }
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            opened += usize::from(exercise(folder.path()));
        }
    }
    assert!((100..2900).contains(&opened), "{opened} of 3000 could be opened");
}
