//! Adapters beside frozen layers, against f64, and their files.

use std::fs;
use std::path::PathBuf;

use burn::backend::{Autodiff, Flex, NdArray};
use burn::module::{AutodiffModule, Module};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, f16};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::{Fp8Backend, Fp8Error, Fp8Matmul};
use burn_fp8_serve::lora::{Adapters, LoraConfig, LoraLinear, save_adapters};
use burn_fp8_test_support::{Exact, Random, Sums, assert_close, refused, transpose, wide};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::numbers;

type B = Autodiff<Flex>;

/// Inputs, outputs, rows, rank; alpha over rank is 1.5.
const SIZES: [usize; 4] = [24, 20, 7, 4];

fn random<A: Backend>(seed: u64, shape: [usize; 2]) -> Tensor<A, 2> {
    let values = Random(seed).units(shape[0] * shape[1]);
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

fn f64s<A: Backend>(tensor: Tensor<A, 2>) -> Vec<f64> {
    wide(&numbers(tensor))
}

fn layer<A: Backend + Fp8Matmul>() -> LoraLinear<A> {
    let [d_input, d_output, _, rank] = SIZES;
    let bias = Tensor::from_data(TensorData::from([0.25f32; 20]), &Default::default());
    let (weight, activation) = (random(1, [d_input, d_output]), ActivationScale::Unquantized);
    let base = FrozenLinear::<A>::from_weight(weight, Some(bias), activation);
    let (a, b) = (random(2, [rank, d_input]), random(3, [d_output, rank]));
    let config = LoraConfig::new(rank).with_alpha(6.0);
    config.with(base.expect("a layer"), a, b).expect("an adapter")
}

/// Output and gradients of adapter and input, from the dequantized weight.
fn against_f64<A: AutodiffBackend + Fp8Matmul>() {
    let [d_input, d_output, rows, rank] = SIZES;
    let layer = layer::<A>();
    let (input, grad) =
        (random::<A>(4, [rows, d_input]).require_grad(), random(5, [rows, d_output]));
    let y = layer.forward(input.clone());
    let grads = (y.clone() * grad.clone()).sum().backward();

    let [x, grad, weight] = [input.clone(), grad, layer.base.weight()].map(f64s);
    let a = transpose(&f64s(layer.a.val()), [rank, d_input]);
    let b = transpose(&f64s(layer.b.val()), [d_output, rank]);
    let low = Exact::product(&x, &a, [rows, d_input, rank]);
    let [of_b, of_low, grad_b] = Exact::step([&low.values, &b, &grad], [rows, rank, d_output]);
    let [_, of_a, grad_a] = Exact::step([&x, &a, &of_low.values], [rows, d_input, rank]);
    let [of_weight, of_x, _] = Exact::step([&x, &weight, &grad], [rows, d_input, d_output]);
    let scale = |exact: Exact| exact.times(1.5).with_roundings(2 * d_input);
    let close = |found: Tensor<A::InnerBackend, 2>, exact: Exact, what| {
        exact.assert(&numbers(found), Sums::F32, what);
    };
    close(y.inner(), of_weight.plus(&scale(of_b)).plus_bias(&[0.25]), "the output");
    close(input.grad(&grads).unwrap(), of_x.plus(&scale(of_a)), "the gradient of the input");
    close(layer.a.grad(&grads).unwrap().transpose(), scale(grad_a), "the gradient of a");
    close(layer.b.grad(&grads).unwrap().transpose(), scale(grad_b), "the gradient of b");
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
    let (layer, x) = (layer::<Flex>(), random::<Flex>(5, [rows, d_input]));
    let merged = x.clone().matmul(layer.merged()) + 0.25;
    assert_close(&numbers(merged), &numbers(layer.forward(x)), 1e-5, "merged");
}

#[test]
fn a_new_adapter_adds_nothing_and_learns() {
    let [d_input, d_output, rows, _] = SIZES;
    let base = layer::<B>().base;
    let layer = LoraConfig::new(2).with_dropout(0.5).init(base.clone()).expect("an adapter");
    let x = random::<B>(5, [rows, d_input]);
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
    let (valid, x) = (trained.valid(), x.inner());
    assert_eq!(f64s(valid.forward(x.clone())), f64s(valid.forward(x)));
    // A record keeps base and adapter.
    let loaded = layer.load_record(trained.clone().into_record());
    assert_eq!(f64s(loaded.merged()), f64s(trained.merged()));
}

/// An adapter in a folder.
struct Saved {
    folder: TempDir,
    layer: LoraLinear<Flex>,
}

impl Saved {
    /// Beside layers of these names, with whole tensors.
    fn new(names: &[&str], whole: &[(&str, &TensorData)]) -> Self {
        let (folder, layer) = (TempDir::new().unwrap(), layer());
        let whole = whole.iter().map(|(name, data)| ((*name).to_owned(), (*data).clone()));
        let adapters = names.iter().map(|name| (*name, &layer));
        save_adapters(folder.path(), "base", adapters, whole).expect("written");
        Self { folder, layer }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("adapter_config.json")).unwrap()).unwrap()
    }

    /// What is read where the configuration has something else for a key.
    fn changed(&self, key: &str, value: Value) -> Result<Adapters, Fp8Error> {
        let original = self.config();
        let mut config = original.clone();
        config[key] = value;
        self.with(&config, &original)
    }

    fn with(&self, config: &Value, original: &Value) -> Result<Adapters, Fp8Error> {
        let write =
            |config: &Value| fs::write(self.path("adapter_config.json"), config.to_string());
        write(config).unwrap();
        let loaded = self.load();
        write(original).unwrap();
        loaded
    }

    fn load(&self) -> Result<Adapters, Fp8Error> {
        Adapters::load(self.folder.path())
    }

    fn is_read(&self, adapters: &Adapters, name: &str) {
        let read = adapters.apply(name, self.layer.base.clone()).expect("an adapter");
        assert_eq!(f64s(read.merged()), f64s(self.layer.merged()));
        assert_eq!((read.config().rank, read.config().alpha), (4, 6.0));
    }
}

#[test]
fn files_are_those_of_peft() {
    let names = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"];
    let saved = Saved::new(&names, &[]);
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("r", json!(4)),
        ("lora_alpha", json!(6.0)),
        ("target_modules", json!(["q_proj"])),
        ("bias", json!("none")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!("base")),
        ("init_lora_weights", json!(true)),
    ] {
        assert_eq!(saved.config()[key], value, "{key}");
    }
    let file = fs::read(saved.path("adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    for (part, shape) in [("lora_A", [4, 24]), ("lora_B", [20, 4])] {
        let name = format!("base_model.model.{}.{part}.weight", names[1]);
        assert_eq!(file.tensor(&name).unwrap().shape(), shape);
    }
    let adapters = saved.load().expect("read");
    assert_eq!(adapters.names().collect::<Vec<_>>(), names);
    saved.is_read(&adapters, names[0]);
}

/// What was trained beside adapters is found again by name, and by no other name or shape.
#[test]
fn whole_tensors_lie_beside_adapters() {
    let gamma = TensorData::new(vec![0.5f32, -2.0, 3.0], [3]);
    let table = TensorData::new(vec![1f32, 2.0, 3.0, 4.0], [2, 2]);
    let whole = [("model.norm.weight", &gamma), ("model.embed_tokens.weight", &table)];
    let saved = Saved::new(&["a"], &whole);
    assert_eq!(saved.config()["modules_to_save"], json!(["embed_tokens", "norm"]));

    let adapters = saved.load().expect("read");
    assert_eq!(adapters.names().collect::<Vec<_>>(), ["a"]);
    let names: Vec<&str> = adapters.whole().collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    assert_eq!(adapters.whole_tensor("model.norm.weight", &[3]).unwrap(), gamma);
    refused(adapters.whole_tensor("model.norm.weight", &[4]), ["[4]", "another model"]);
    refused(adapters.whole_tensor("norm.weight", &[3]), ["norm.weight` is missing"]);
    refused(saved.changed("ensure_weight_tying", json!(true)), ["ensure_weight_tying"]);
    // A tensor that the configuration does not speak of is none of an adapter.
    refused(saved.changed("modules_to_save", json!(["norm"])), ["embed_tokens", "no matrix"]);
    let halves = [("norm.weight".to_owned(), gamma.convert::<f16>())];
    let written = save_adapters(saved.folder.path(), "base", [("a", &saved.layer)], halves);
    refused(written, ["norm.weight"]);
}

/// All keys that PEFT 0.21.2 writes for a plain adapter, begun in each way that leaves the base as it is.
#[test]
fn configurations_of_peft_are_read() {
    let saved = Saved::new(&["a"], &[]);
    let original = saved.config();
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
        saved.is_read(&saved.with(&config, &original).expect("a plain adapter"), "a");
    }
}

/// As PEFT has them: what is converted from another kind has twice the rank.
#[test]
fn a_rank_may_be_above_a_side() {
    let [d_input, d_output, ..] = SIZES;
    let rank = d_input + 1;
    let base = layer::<Flex>().base;
    let (a, b) = (random(5, [rank, d_input]), random(6, [d_output, rank]));
    let layer = LoraConfig::new(rank).with_alpha(5.0).with(base.clone(), a.clone(), b.clone());
    let layer = layer.expect("an adapter");
    let low = Exact::product(&f64s(b), &f64s(a), [d_output, rank, d_input]);
    let low = transpose(&low.values, [d_output, d_input]);
    let sums = f64s(base.weight()).into_iter().zip(low);
    let expected: Vec<f32> = sums.map(|(x, y)| (x + 5.0 / rank as f64 * y) as f32).collect();
    assert_close(&numbers(layer.merged()), &expected, 1e-5, "merged");

    let folder = TempDir::new().unwrap();
    save_adapters(folder.path(), "base", [("a", &layer)], []).expect("written");
    let read = Adapters::load(folder.path()).expect("read").apply("a", base).expect("an adapter");
    assert_close(&numbers(read.merged()), &expected, 1e-5, "read");
}

#[test]
fn what_cannot_be_an_adapter() {
    let saved = Saved::new(&["a"], &[]);
    let (layer, base) = (&saved.layer, || saved.layer.base.clone());
    refused(LoraConfig::new(0).init(base()), ["rank is 0", "at least 1"]);
    refused(LoraConfig::new(2).with_alpha(f64::NAN).init(base()), ["alpha is NaN"]);
    refused(LoraConfig::new(2).with_dropout(1.0).init(base()), ["dropout 1"]);

    let folder = TempDir::new().unwrap();
    let save = |adapters: &[(&str, &LoraLinear<Flex>)]| {
        save_adapters(folder.path(), "base", adapters.iter().copied(), [])
    };
    refused(save(&[]), ["none to be written"]);
    refused(save(&[("a", layer), ("a", layer)]), ["two", "`a`"]);
    let other = LoraConfig::new(2).init(base()).unwrap();
    refused(save(&[("a", layer), ("b", &other)]), ["`b`", "otherwise"]);
    refused(Adapters::load(folder.path()), ["adapter_config.json", "read"]);

    let adapters = saved.load().unwrap();
    refused(adapters.apply("b", base()), ["none for `b`", "`a`"]);
    let weight = random::<Flex>(1, [16, 20]);
    let smaller = FrozenLinear::from_weight(weight, None, ActivationScale::Current).unwrap();
    let words = ["lora_A", "[4, 24]", "[4, 16]", "another model"];
    refused(adapters.apply("a", smaller), words);

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
        refused(saved.changed(key, value), ["adapter_config.json", key]);
    }
    // PEFT takes from the base what these begin with.
    for start in ["pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga"] {
        let words = ["init_lora_weights", start, "path_initial_model_for_weight_conversion"];
        refused(saved.changed("init_lora_weights", json!(start)), words);
    }
    refused(saved.with(&json!({}), &saved.config()), ["no configuration of LoRA"]);
    let weights = saved.path("adapter_model.safetensors");
    for (file, words) in
        [(&b"\x02\0\0\0\0\0\0\0{}"[..], "no adapters"), (b"damaged", "adapter_model.safetensors")]
    {
        fs::write(&weights, file).unwrap();
        refused(saved.load(), [words]);
    }
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
    // Nothing was written.
    refused(Adapters::load(at("of_pipe")), ["adapter_config.json"]);
}
