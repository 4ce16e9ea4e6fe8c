//! Adapters beside frozen layers, against f64, and their files.

use std::fs;

use burn::backend::{Autodiff, Flex, NdArray};
use burn::module::{AutodiffModule, Module};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::{Fp8Backend, Fp8Error, Fp8Matmul};
use burn_fp8_serve::lora::{Adapters, LoraConfig, LoraLinear, save_adapters};
use serde_json::{Value, json};
use tempfile::TempDir;

type B = Autodiff<Flex>;

/// Inputs, outputs, rows, rank; alpha over rank is 1.5.
const SIZES: [usize; 4] = [24, 20, 7, 4];

fn random(shape: [usize; 2], seed: usize) -> Vec<f64> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 10_007) as f64 / 5_003.5 - 1.0;
    // Numbers of f32.
    (0..shape[0] * shape[1]).map(|i| f64::from(number(i) as f32)).collect()
}

fn tensor<A: Backend>(values: &[f64], shape: [usize; 2]) -> Tensor<A, 2> {
    let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

fn f64s<A: Backend>(tensor: Tensor<A, 2>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// `[m, k]` times `[k, n]`.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let element = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum();
    (0..m * n).map(element).collect()
}

fn transpose(a: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|i| a[i % rows * columns + i / rows]).collect()
}

fn added(a: &[f64], b: &[f64], factor: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + factor * b).collect()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    let largest = expected.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * largest, "{what}: {found} for {expected}");
    }
}

fn layer<A: Backend + Fp8Matmul>() -> LoraLinear<A> {
    let [d_input, d_output, _, rank] = SIZES;
    let weight = tensor::<A>(&random([d_input, d_output], 1), [d_input, d_output]);
    let bias = Tensor::from_data(TensorData::from([0.25f32; 20]), &Default::default());
    let base = FrozenLinear::from_weight(weight, Some(bias), ActivationScale::Unquantized);
    let a = tensor(&random([rank, d_input], 2), [rank, d_input]);
    let b = tensor(&random([d_output, rank], 3), [d_output, rank]);
    let config = LoraConfig::new(rank).with_alpha(6.0);
    config.with(base.expect("a layer"), a, b).expect("an adapter")
}

/// Output and gradients of adapter and input, from the dequantized weight.
fn against_f64<A: AutodiffBackend + Fp8Matmul>() {
    let [d_input, d_output, rows, rank] = SIZES;
    let layer = layer::<A>();
    let [x, grad] = [[rows, d_input], [rows, d_output]].map(|shape| random(shape, 9));
    let input = tensor::<A>(&x, [rows, d_input]).require_grad();
    let y = layer.forward(input.clone());
    let grads = (y.clone() * tensor(&grad, [rows, d_output])).sum().backward();

    let [weight, a, b] = [layer.base.weight(), layer.a.val(), layer.b.val()].map(f64s);
    let scale = 1.5;
    let low = product(&x, &transpose(&a, [rank, d_input]), [rows, d_input, rank]);
    let of_adapter = product(&low, &transpose(&b, [d_output, rank]), [rows, rank, d_output]);
    let expected = added(&product(&x, &weight, [rows, d_input, d_output]), &of_adapter, scale);
    let expected: Vec<f64> = expected.iter().map(|y| y + 0.25).collect();
    assert_close(&f64s(y), &expected, "the output");

    let of_low = product(&grad, &b, [rows, d_output, rank]);
    let through_base =
        product(&grad, &transpose(&weight, [d_input, d_output]), [rows, d_output, d_input]);
    let through_adapter = product(&of_low, &a, [rows, rank, d_input]);
    let of_x = added(&through_base, &through_adapter, scale);
    let of_a = product(&transpose(&of_low, [rows, rank]), &x, [rank, rows, d_input]);
    let of_b = product(&transpose(&grad, [rows, d_output]), &low, [d_output, rows, rank]);
    let scaled = |values: Vec<f64>| values.iter().map(|x| x * scale).collect::<Vec<_>>();
    let found = input.grad(&grads).expect("a gradient of the input");
    assert_close(&f64s(found), &of_x, "the gradient of the input");
    let found = layer.a.grad(&grads).expect("a gradient of a");
    assert_close(&f64s(found), &scaled(of_a), "the gradient of a");
    let found = layer.b.grad(&grads).expect("a gradient of b");
    assert_close(&f64s(found), &scaled(of_b), "the gradient of b");
}

#[test]
fn outputs_and_gradients_are_those_of_f64() {
    against_f64::<Autodiff<Flex>>();
    against_f64::<Autodiff<NdArray>>();
    // Adapters stay in f32.
    against_f64::<Fp8Backend<Autodiff<Flex>>>();
    against_f64::<Autodiff<Fp8Backend<Flex>>>();
}

#[test]
fn a_merged_weight_computes_the_same() {
    let [d_input, _, rows, _] = SIZES;
    let layer = layer::<Flex>();
    let x = tensor::<Flex>(&random([rows, d_input], 5), [rows, d_input]);
    let merged = x.clone().matmul(layer.merged()) + 0.25;
    assert_close(&f64s(merged), &f64s(layer.forward(x)), "merged");
}

#[test]
fn a_new_adapter_adds_nothing_and_learns() {
    let [d_input, d_output, rows, _] = SIZES;
    let base = layer::<B>().base;
    let layer = LoraConfig::new(2).with_dropout(0.5).init(base.clone()).expect("an adapter");
    let x = tensor::<B>(&random([rows, d_input], 5), [rows, d_input]);
    assert_eq!(f64s(layer.forward(x.clone())), f64s(base.forward(x.clone())));
    let mut optimizer = SgdConfig::new().init();
    let mut step = |layer: LoraLinear<B>| {
        let loss = layer.forward(x.clone()).powi_scalar(2).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &layer);
        assert_eq!(grads.len(), 2, "the base has no gradients");
        optimizer.step(1e-3, layer, grads)
    };
    let once = step(layer.clone());
    let trained = step(once);
    assert_ne!(f64s(trained.b.val()), vec![0.0; 2 * d_output]);
    assert_ne!(f64s(trained.a.val()), f64s(layer.a.val()));
    assert_eq!(f64s(trained.base.weight()), f64s(base.weight()));
    // Elements are dropped in training alone.
    let [first, second] = [(); 2].map(|()| f64s(trained.forward(x.clone())));
    assert_ne!(first, second);
    let valid = trained.valid();
    let x = x.inner();
    assert_eq!(f64s(valid.forward(x.clone())), f64s(valid.forward(x)));
    // A record keeps base and adapter.
    let loaded = layer.load_record(trained.clone().into_record());
    assert_eq!(f64s(loaded.merged()), f64s(trained.merged()));
}

#[test]
fn files_are_those_of_peft() {
    let folder = TempDir::new().unwrap();
    let layer = layer::<Flex>();
    let names = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"];
    save_adapters(folder.path(), "base", names.map(|name| (name, &layer)), []).expect("written");
    let config = fs::read(folder.path().join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("r", json!(4)),
        ("lora_alpha", json!(6.0)),
        ("target_modules", json!(["q_proj"])),
        ("bias", json!("none")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!("base")),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    let file = fs::read(folder.path().join("adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let tensor = |part: &str| {
        let name = format!("base_model.model.{}.{part}.weight", names[1]);
        file.tensor(&name).unwrap().shape().to_vec()
    };
    assert_eq!([tensor("lora_A"), tensor("lora_B")], [vec![4, 24], vec![20, 4]]);

    let adapters = Adapters::load(folder.path()).expect("read");
    assert_eq!(adapters.names().collect::<Vec<_>>(), names);
    let read = adapters.apply(names[0], layer.base.clone()).expect("an adapter");
    assert_eq!(f64s(read.merged()), f64s(layer.merged()));
    assert_eq!((read.config().rank, read.config().alpha), (4, 6.0));
}

/// What was trained beside adapters is found again by name, and by no other name or shape.
#[test]
fn whole_tensors_lie_beside_adapters() {
    let folder = TempDir::new().unwrap();
    let (layer, gamma) = (layer::<Flex>(), TensorData::new(vec![0.5f32, -2.0, 3.0], [3]));
    let table = TensorData::new(vec![1f32, 2.0, 3.0, 4.0], [2, 2]);
    let whole = [("model.norm.weight", &gamma), ("model.embed_tokens.weight", &table)];
    let whole = whole.map(|(name, data)| (name.to_owned(), data.clone()));
    save_adapters(folder.path(), "base", [("a", &layer)], whole).expect("written");
    let path = folder.path().join("adapter_config.json");
    let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(config["modules_to_save"], json!(["embed_tokens", "norm"]));

    let adapters = Adapters::load(folder.path()).expect("read");
    assert_eq!(adapters.names().collect::<Vec<_>>(), ["a"]);
    let names: Vec<&str> = adapters.whole().collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    assert_eq!(adapters.whole_tensor("model.norm.weight", &[3]).unwrap(), gamma);
    let error = adapters.whole_tensor("model.norm.weight", &[4]).unwrap_err().to_string();
    assert!(error.contains("[4]") && error.contains("another model"), "{error}");
    let error = adapters.whole_tensor("norm.weight", &[3]).unwrap_err().to_string();
    assert!(error.contains("norm.weight` is missing"), "{error}");

    let mut config = config;
    config["ensure_weight_tying"] = json!(true);
    fs::write(&path, config.to_string()).unwrap();
    let error = Adapters::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("ensure_weight_tying"), "{error}");
    config["ensure_weight_tying"] = json!(false);

    // A tensor that the configuration does not speak of is none of an adapter.
    config["modules_to_save"] = json!(["norm"]);
    fs::write(&path, config.to_string()).unwrap();
    let error = Adapters::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("embed_tokens") && error.contains("no matrix"), "{error}");
    let halves = [("norm.weight".to_owned(), gamma.convert::<burn::tensor::f16>())];
    let error = save_adapters(folder.path(), "base", [("a", &layer)], halves).unwrap_err();
    assert!(error.to_string().contains("norm.weight"), "{error}");
}

/// All keys that PEFT 0.21.2 writes for a plain adapter, begun in each way that leaves the base as it is.
#[test]
fn configurations_of_peft_are_read() {
    let folder = TempDir::new().unwrap();
    let layer = layer::<Flex>();
    save_adapters(folder.path(), "base", [("a", &layer)], []).expect("written");
    let path = folder.path().join("adapter_config.json");
    let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for start in [json!(true), json!(false), json!("gaussian"), json!("eva"), json!("orthogonal")] {
        let mut config = json!({
            "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
            "base_model_name_or_path": "base", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
            "eva_config": { "rho": 2.0 }, "exclude_modules": ["lm_head"], "fan_in_fan_out": true, "inference_mode": true,
            "kasa_config": null, "layer_replication": null, "layers_pattern": "layers", "layers_to_transform": [0, 1],
            "loftq_config": {}, "lora_alpha": 6, "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null,
            "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
            "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4, "rank_pattern": {},
            "revision": null, "target_modules": ["q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
            "trainable_token_indices": null, "use_bdlora": null, "use_dora": false, "use_qalora": false,
            "use_rslora": false, "velora_config": null,
        });
        config["init_lora_weights"] = start;
        fs::write(&path, config.to_string()).unwrap();
        let adapters = Adapters::load(folder.path()).expect("a plain adapter");
        let read = adapters.apply("a", layer.base.clone()).expect("an adapter");
        assert_eq!(f64s(read.merged()), f64s(layer.merged()));
    }
    assert_eq!(written["init_lora_weights"], json!(true));
}

/// As PEFT has them: what is converted from another kind has twice the rank.
#[test]
fn a_rank_may_be_above_a_side() {
    let [d_input, d_output, ..] = SIZES;
    let rank = d_input + 1;
    let base = layer::<Flex>().base;
    let (a, b) = (random([rank, d_input], 5), random([d_output, rank], 6));
    let (of_a, of_b) = (tensor(&a, [rank, d_input]), tensor(&b, [d_output, rank]));
    let layer = LoraConfig::new(rank).with_alpha(5.0).with(base.clone(), of_a, of_b);
    let layer = layer.expect("an adapter");
    let low = product(&b, &a, [d_output, rank, d_input]);
    let low = transpose(&low, [d_output, d_input]);
    let expected = added(&f64s(base.weight()), &low, 5.0 / rank as f64);
    assert_close(&f64s(layer.merged()), &expected, "merged");

    let folder = TempDir::new().unwrap();
    save_adapters(folder.path(), "base", [("a", &layer)], []).expect("written");
    let read = Adapters::load(folder.path()).expect("read").apply("a", base).expect("an adapter");
    assert_close(&f64s(read.merged()), &expected, "read");
}

#[test]
fn what_cannot_be_an_adapter() {
    let folder = TempDir::new().unwrap();
    let layer = layer::<Flex>();
    let base = || layer.base.clone();
    let says = |error: Fp8Error, words: &[&str]| {
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let refused =
        |config: LoraConfig, words: &[&str]| says(config.init(base()).unwrap_err(), words);
    refused(LoraConfig::new(0), &["rank is 0", "at least 1"]);
    refused(LoraConfig::new(2).with_alpha(f64::NAN), &["alpha is NaN"]);
    refused(LoraConfig::new(2).with_dropout(1.0), &["dropout 1"]);

    let nothing: [(&str, &LoraLinear<Flex>); 0] = [];
    says(save_adapters(folder.path(), "base", nothing, []).unwrap_err(), &["none to be written"]);
    let twice = [("a", &layer), ("a", &layer)];
    says(save_adapters(folder.path(), "base", twice, []).unwrap_err(), &["two", "`a`"]);
    let other = LoraConfig::new(2).init(base()).unwrap();
    let unlike = [("a", &layer), ("b", &other)];
    says(save_adapters(folder.path(), "base", unlike, []).unwrap_err(), &["`b`", "otherwise"]);
    says(Adapters::load(folder.path()).unwrap_err(), &["adapter_config.json", "read"]);

    save_adapters(folder.path(), "base", [("a", &layer)], []).unwrap();
    let adapters = Adapters::load(folder.path()).unwrap();
    says(adapters.apply("b", base()).unwrap_err(), &["none for `b`", "`a`"]);
    let weight = tensor::<Flex>(&random([16, 20], 1), [16, 20]);
    let smaller = FrozenLinear::from_weight(weight, None, ActivationScale::Current).unwrap();
    let words = ["lora_A", "[4, 24]", "[4, 16]", "another model"];
    says(adapters.apply("a", smaller).unwrap_err(), &words);

    let path = folder.path().join("adapter_config.json");
    let original: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("use_dora", json!(true)),
        ("use_rslora", json!(true)),
        ("bias", json!("all")),
        ("rank_pattern", json!({ "q_proj": 8 })),
        ("alora_invocation_tokens", json!([1])),
        ("layer_replication", json!([[0, 2]])),
        ("r", json!(0)),
        ("lora_bias", json!(true)),
        ("target_parameters", json!(["experts.gate_up_proj"])),
        ("trainable_token_indices", json!({ "embed_tokens": [5] })),
        ("alpha_pattern", json!({ "q_proj": 8 })),
        ("use_qalora", json!(true)),
        ("use_bdlora", json!({ "nblocks": 2 })),
        ("arrow_config", json!({ "top_k": 3 })),
        ("kasa_config", json!({ "beta": 0.1 })),
        ("monteclora_config", json!({ "num_samples": 8 })),
        ("velora_config", json!({ "rank": 1 })),
        // Of a PEFT to come.
        ("use_something_else", json!(true)),
        ("a_number", json!(0.5)),
    ] {
        let mut config = original.clone();
        config[key] = value;
        fs::write(&path, config.to_string()).unwrap();
        says(Adapters::load(folder.path()).unwrap_err(), &["adapter_config.json", key]);
    }
    // PEFT takes from the base what these begin with.
    for start in ["pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga"] {
        let mut config = original.clone();
        config["init_lora_weights"] = json!(start);
        fs::write(&path, config.to_string()).unwrap();
        let words = ["init_lora_weights", start, "path_initial_model_for_weight_conversion"];
        says(Adapters::load(folder.path()).unwrap_err(), &words);
    }
    fs::write(&path, "{}").unwrap();
    says(Adapters::load(folder.path()).unwrap_err(), &["no configuration of LoRA"]);
    fs::write(&path, original.to_string()).unwrap();
    let none = b"\x02\0\0\0\0\0\0\0{}";
    fs::write(folder.path().join("adapter_model.safetensors"), none).unwrap();
    says(Adapters::load(folder.path()).unwrap_err(), &["no adapters"]);
    fs::write(folder.path().join("adapter_model.safetensors"), "damaged").unwrap();
    says(Adapters::load(folder.path()).unwrap_err(), &["adapter_model.safetensors"]);
}

/// A link to the file of weights stays one; a folder or a pipe in its place is refused, and stays.
#[cfg(unix)]
#[test]
fn files_of_adapters_replace_files_alone() {
    use std::os::unix::fs::symlink;

    let folder = TempDir::new().unwrap();
    let layer = layer::<Flex>();
    let save = |to: &str| save_adapters(folder.path().join(to), "base", [("a", &layer)], []);
    let at = |path: &str| folder.path().join(path);
    let kind = |path: &str| fs::symlink_metadata(at(path)).unwrap().file_type();
    fs::write(at("file"), "old").unwrap();
    fs::create_dir(at("sub")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for (to, is_file) in [("file", true), ("sub", false), ("pipe", false)] {
        let (adapter, before) = (format!("of_{to}"), kind(to));
        fs::create_dir(at(&adapter)).unwrap();
        let weights = format!("{adapter}/adapter_model.safetensors");
        symlink(at(to), at(&weights)).unwrap();
        assert_eq!(save(&adapter).is_ok(), is_file, "{to}");
        assert!(kind(&weights).is_symlink());
        assert_eq!(kind(to), before);
    }
    assert_eq!(Adapters::load(at("of_file")).unwrap().names().collect::<Vec<_>>(), ["a"]);
    let words = |error: Fp8Error| error.to_string();
    let pipe = words(Adapters::load(at("of_pipe")).unwrap_err());
    assert!(pipe.contains("adapter_config.json"), "nothing was written: {pipe}");
}
