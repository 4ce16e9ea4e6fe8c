//! Adapters in PEFT's files: `adapter_model.safetensors` and `adapter_config.json`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8::Fp8Error;
use burn_fp8::checkpoint::{CheckpointError, Dtype, TensorFile, read_file, write_file};
use burn_fp8::nn::FrozenLinear;
use burn_fp8_core::text::shown;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{LoraConfig, LoraLinear, invalid};

const MODEL: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// What PEFT puts before names of layers.
const PREFIX: &str = "base_model.model.";
const PARTS: [&str; 2] = ["lora_A", "lora_B"];
const WEIGHT: &str = ".weight";

/// The largest configuration that is read, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// What is written and read of PEFT's `LoraConfig`. Keys that are absent have PEFT's defaults.
#[derive(Debug, Serialize, Deserialize)]
struct Peft {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    #[serde(default = "none")]
    bias: String,
    #[serde(default = "plain")]
    init_lora_weights: Value,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    ensure_weight_tying: bool,
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Keys of PEFT 0.21's `LoraConfig` that change nothing of what an adapter computes beside a linear layer: which layers have one, the file says; how it was begun,
/// `init_lora_weights` does; `fan_in_fan_out` is for layers of another class, of which no such model has one.
const OF_NO_MATTER: &str = "\
    auto_mapping corda_config eva_config exclude_modules fan_in_fan_out inference_mode \
    layers_pattern layers_to_transform loftq_config lora_ga_config megatron_config megatron_core \
    peft_version qalora_group_size revision runtime_config";

/// How adapters begin beside a base that stays as it is, other than `true` and `false`. Others (`pissa`, `olora`, `corda`, `loftq`, `lora_ga`) take from the base what they begin with.
const PLAIN: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

fn none() -> String {
    "none".into()
}

fn plain() -> Value {
    Value::Bool(true)
}

impl Peft {
    /// The first key that changes the meaning of an adapter and is not known here, its value, and what to do.
    fn unknown(&self) -> Option<(&str, Value, &'static str)> {
        let begins_plainly = match &self.init_lora_weights {
            Value::String(kind) => PLAIN.contains(&&kind.to_lowercase()[..]),
            kind => kind.is_boolean() || kind.is_null(),
        };
        if !begins_plainly {
            const CONVERT: &str = "; adapters that begin so belong to a base that was changed for them: of pissa, olora, corda and lora_ga PEFT makes plain ones, by \
                `save_pretrained(.., path_initial_model_for_weight_conversion=..)`";
            return Some(("init_lora_weights", self.init_lora_weights.clone(), CONVERT));
        }
        // What is off is as good as absent: each new version of PEFT writes its new keys so.
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(object) => object.is_empty(),
            _ => false,
        };
        let is_known =
            |key: &str, value| OF_NO_MATTER.split(' ').any(|known| known == key) || is_off(value);
        let others = self.others.iter().find(|(key, value)| !is_known(key, value));
        let ties = self.ensure_weight_tying && self.modules_to_save.is_some();
        let is_other = [
            (self.peft_type != "LORA", "peft_type", json!(self.peft_type)),
            (self.bias != "none", "bias", json!(self.bias)),
            (self.r == 0, "r", json!(self.r)),
            (ties, "ensure_weight_tying", json!(true)),
        ];
        let is_other = is_other.into_iter().find(|(is_other, ..)| *is_other);
        let is_other = is_other.map(|(_, key, value)| (key, value));
        let found = is_other.or(others.map(|(key, value)| (&key[..], value.clone())));
        found.map(|(key, value)| (key, value, ""))
    }
}

/// Writes adapters into a folder as PEFT does, each with the name of its layer, such as `model.layers.0.self_attn.q_proj`. `base` is the folder or the name on the hub
/// of the model that they are for. `whole` has what was trained beside them, in the place of what the model has: the names of tensors, such as
/// `model.norm.weight`, and their numbers in f32 (PEFT's `modules_to_save`).
///
/// # Errors
/// [`Fp8Error::Invalid`] where there is no adapter, two have one name, or they were not made alike, or a whole tensor is not f32; [`Fp8Error::Io`] where the folder cannot be written.
pub fn save_adapters<'a, B: Backend>(
    folder: impl AsRef<Path>,
    base: &str,
    adapters: impl IntoIterator<Item = (&'a str, &'a LoraLinear<B>)>,
    whole: impl IntoIterator<Item = (String, TensorData)>,
) -> Result<(), Fp8Error> {
    let folder = folder.as_ref();
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = vec![];
    let (mut config, mut targets) = (None::<LoraConfig>, BTreeSet::new());
    let mut names = BTreeSet::new();
    for (layer, adapter) in adapters {
        if !names.insert(layer) {
            return Err(invalid(format!("there are two for the layer {}", name(layer))));
        }
        let own = adapter.config();
        let other = config.get_or_insert_with(|| own.clone());
        if (own.rank, own.alpha, own.dropout) != (other.rank, other.alpha, other.dropout) {
            let reason = "a file of PEFT has adapters of one rank, alpha and dropout";
            return Err(invalid(format!("that of {} is made otherwise: {reason}", name(layer))));
        }
        targets.insert(layer.rsplit('.').next().unwrap_or(layer));
        for (part, matrix) in PARTS.iter().zip([&adapter.a, &adapter.b]) {
            let numbers = matrix.val().into_data().to_vec::<f32>();
            let numbers = numbers.map_err(|error| invalid(format!("{error:?}")))?;
            let name = format!("{PREFIX}{layer}.{part}.weight");
            tensors.push((name, matrix.dims().to_vec(), little_endian(&numbers)));
        }
    }
    let Some(LoraConfig { rank, alpha, dropout }) = config else {
        return Err(invalid("there is none to be written".into()));
    };
    let mut modules = BTreeSet::new();
    for (tensor, data) in whole {
        let module = tensor.strip_suffix(WEIGHT).unwrap_or(&tensor);
        modules.insert(module.rsplit('.').next().unwrap_or(module).to_owned());
        let numbers = data.as_slice::<f32>();
        let numbers = numbers.map_err(|error| invalid(format!("{}: {error:?}", name(&tensor))))?;
        let bytes = little_endian(numbers);
        tensors.push((format!("{PREFIX}{tensor}"), data.shape.to_vec(), bytes));
    }
    let peft = Peft {
        peft_type: "LORA".into(),
        r: rank,
        lora_alpha: alpha,
        lora_dropout: dropout,
        bias: none(),
        init_lora_weights: plain(),
        modules_to_save: (!modules.is_empty()).then(|| modules.into_iter().collect()),
        ensure_weight_tying: false,
        target_modules: json!(targets),
        task_type: Some("CAUSAL_LM".into()),
        base_model_name_or_path: Some(base.into()),
        others: Map::new(),
    };
    let io = |reason| Fp8Error::Io { action: "write", path: folder.into(), reason };
    fs::create_dir_all(folder).map_err(io)?;
    let tensors =
        tensors.iter().map(|(name, shape, bytes)| (&name[..], Dtype::F32, &shape[..], &bytes[..]));
    TensorFile::write(folder.join(MODEL), tensors).map_err(of_file)?;
    let json = serde_json::to_vec_pretty(&peft).expect("numbers and texts always serialize");
    let path = folder.join(CONFIG);
    write_file(&path, &json).map_err(|reason| Fp8Error::Io { action: "write", path, reason })
}

/// What is wrong with a file of tensors.
fn of_file(error: CheckpointError) -> Fp8Error {
    match error {
        CheckpointError::Io { action, path, reason } => Fp8Error::Io { action, path, reason },
        other => invalid(other.to_string()),
    }
}

/// Adapters in a folder of PEFT.
#[derive(Debug)]
pub struct Adapters {
    config: LoraConfig,
    path: PathBuf,
    file: TensorFile,
    names: BTreeSet<String>,
    whole: BTreeSet<String>,
}

impl Adapters {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where a file cannot be read, [`Fp8Error::InvalidState`] where one is damaged, or the configuration has what changes the meaning of adapters and
    /// is not known here: DoRA, rank-stabilized scales, biases, ranks of their own for some layers, a base that is changed before the training (PiSSA, OLoRA, CorDA, LoftQ,
    /// LoRA-GA), and any key of a newer PEFT that is in use. The key is named.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self, Fp8Error> {
        let path = folder.as_ref().join(CONFIG);
        let json = read_file(&path, MAX_CONFIG).map_err(|reason| Fp8Error::Io {
            action: "read",
            path: path.clone(),
            reason,
        })?;
        let wrong = |reason| Fp8Error::InvalidState { path: path.clone(), reason };
        let peft: Peft = serde_json::from_slice(&json)
            .map_err(|error| wrong(format!("no configuration of LoRA ({error})")))?;
        if let Some((key, value, advice)) = peft.unknown() {
            let (key, value) = (name(key), name(&value.to_string()));
            return Err(wrong(format!(
                "{key} is {value}, which this burn-fp8 does not know{advice}"
            )));
        }
        let config =
            LoraConfig::new(peft.r).with_alpha(peft.lora_alpha).with_dropout(peft.lora_dropout);
        let path = folder.as_ref().join(MODEL);
        let file = TensorFile::open(&path).map_err(of_file)?;
        let (mut names, mut whole) = (BTreeSet::new(), BTreeSet::new());
        let modules = peft.modules_to_save.unwrap_or_default();
        for tensor in file.tensors() {
            let key = &tensor.name[..];
            let own = key.strip_prefix(PREFIX);
            let layer = own.and_then(|key| {
                PARTS.iter().find_map(|part| key.strip_suffix(&format!(".{part}.weight")))
            });
            let is_whole = |key: &&str| {
                let module = key.strip_suffix(WEIGHT).unwrap_or(key);
                modules.iter().any(|end| module.ends_with(&end[..]))
            };
            match (layer, own.filter(is_whole)) {
                (Some(layer), _) => names.insert(layer.to_owned()),
                (None, Some(tensor)) => whole.insert(tensor.to_owned()),
                (None, None) => {
                    let reason = format!("{} is no matrix of a LoRA adapter", name(key));
                    return Err(Fp8Error::InvalidState { path, reason });
                }
            };
        }
        if names.is_empty() {
            return Err(Fp8Error::InvalidState { path, reason: "it has no adapters".into() });
        }
        Ok(Self { config, path, file, names, whole })
    }

    /// The names of the layers that have one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The names of the tensors that were trained beside adapters, and are in the place of what the model has.
    pub fn whole(&self) -> impl Iterator<Item = &str> {
        self.whole.iter().map(String::as_str)
    }

    /// The numbers of such a tensor, in f32.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidState`] where there is none of this name, it has another shape, or a number that is not finite.
    pub fn whole_tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, Fp8Error> {
        self.numbers(&format!("{PREFIX}{name}"), shape)
    }

    /// How they were made.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The adapter of this layer, beside its base.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidState`] where there is none of this name, or a matrix is missing, of another shape than the layer takes, or has a number that is not finite.
    pub fn apply<B: Backend>(
        &self,
        layer: &str,
        base: FrozenLinear<B>,
    ) -> Result<LoraLinear<B>, Fp8Error> {
        let wrong = |reason| Fp8Error::InvalidState { path: self.path.clone(), reason };
        if !self.names.contains(layer) {
            let known: Vec<_> = self.names.iter().take(SHOWN).map(|known| name(known)).collect();
            let (count, known) = (self.names.len(), known.join(", "));
            let reason = format!("there is none for {}; of {count} there are {known}", name(layer));
            return Err(wrong(reason));
        }
        let ([d_input, d_output], device) = (base.dims(), base.device());
        let shapes = [[self.config.rank, d_input], [d_output, self.config.rank]];
        let read = |part: &str, shape: [usize; 2]| {
            let data = self.numbers(&format!("{PREFIX}{layer}.{part}.weight"), &shape)?;
            Ok::<_, Fp8Error>(Tensor::from_data(data, (&device, DType::F32)))
        };
        let (a, b) = (read(PARTS[0], shapes[0])?, read(PARTS[1], shapes[1])?);
        self.config.with(base, a, b)
    }

    /// The numbers of a tensor of the file.
    fn numbers(&self, key: &str, shape: &[usize]) -> Result<TensorData, Fp8Error> {
        let wrong = |reason| Fp8Error::InvalidState { path: self.path.clone(), reason };
        let Some(tensor) = self.file.tensor(key).map_err(of_file)? else {
            return Err(wrong(format!("{} is missing", name(key))));
        };
        let (found, own) = (tensor.info().dtype, &tensor.info().shape[..]);
        let Some(numbers) = tensor.to_f32().ok().filter(|_| own == shape) else {
            let expected = format!("F32, BF16 or F16 {shape:?}: the adapter is for another model");
            return Err(wrong(format!("{} is {found} {own:?}, not {expected}", name(key))));
        };
        match numbers.iter().all(|number| number.is_finite()) {
            true => Ok(TensorData::new(numbers, shape.to_vec())),
            false => Err(wrong(format!("{} has a number that is not finite", name(key)))),
        }
    }
}

/// Names of a file, and characters of one, that an error repeats.
const SHOWN: usize = 10;
const LONGEST: usize = 80;

fn name(name: &str) -> String {
    format!("`{}`", shown(name, LONGEST))
}

fn little_endian(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
