//! What a model is, from its `config.json`.

use std::path::{Component, Path};

use anyhow::{Context, Result, bail, ensure};
use burn_fp8_checkpoint::Checkpoint;
use serde_json::Value;

/// Opens a model: its folder, or a safetensors file in it.
///
/// # Errors
/// As [`Checkpoint::open`]; where there is nothing of this name, and it may be that of a model of the hub, the command that fetches it.
pub fn open(model: &Path) -> Result<Checkpoint> {
    match fetched(model) {
        Some(command) if !model.exists() => {
            bail!("there is no folder {}: fetch the model with `{command}`", model.display())
        }
        _ => Ok(Checkpoint::open(model)?),
    }
}

/// The folder of a model that is given as such, or as a file in it.
pub(crate) fn folder_of(model: &Path) -> &Path {
    match model.parent() {
        Some(folder) if !model.is_dir() => folder,
        _ => model,
    }
}

/// The command that fetches the model whose id, or name alone, this may be.
fn fetched(model: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = model
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str().filter(|name| !name.ends_with(".safetensors")),
            _ => None,
        })
        .collect();
    match parts?[..] {
        [name] => Some(format!("hf download OWNER/{name} --local-dir {name}")),
        [owner, name] => Some(format!("hf download {owner}/{name} --local-dir {name}")),
        _ => None,
    }
}

/// A family of models: in what it differs from the others, which share one decoder. A new family is a row of [`FAMILIES`].
struct Family {
    /// What `model_type` calls it.
    name: &'static str,
    /// The width of a head where `head_dim` is absent; `hidden_size` by `num_attention_heads` where this is none.
    head_width: Option<usize>,
    /// Whether queries and keys are normalized head by head.
    head_norms: bool,
    /// Biases of queries, keys and values; of the projection of heads; and of the MLP.
    biases: [Given; 3],
    /// Whether layers have a sliding window.
    window: Given,
    /// Of layers with a window, the first is the one that `max_window_layers` counts, where it is read: this one without the key.
    first_window: Option<usize>,
}

/// A detail that a family has or not, or of which its configuration says that under a key.
#[derive(Clone, Copy)]
enum Given {
    Always,
    Never,
    By(&'static str),
}

impl Given {
    fn read(self, keys: &Keys<'_>) -> Result<bool> {
        match self {
            Self::Always => Ok(true),
            Self::Never => Ok(false),
            Self::By(key) => keys.flag(key),
        }
    }
}

use Given::{Always, By, Never};

const FAMILIES: [Family; 4] = [
    Family {
        name: "llama",
        head_width: None,
        head_norms: false,
        biases: [By("attention_bias"), By("attention_bias"), By("mlp_bias")],
        window: Never,
        first_window: None,
    },
    Family {
        name: "mistral",
        head_width: None,
        head_norms: false,
        biases: [Never; 3],
        window: Always,
        first_window: None,
    },
    Family {
        name: "qwen2",
        head_width: None,
        head_norms: false,
        biases: [Always, Never, Never],
        window: By("use_sliding_window"),
        first_window: Some(28),
    },
    Family {
        name: "qwen3",
        head_width: Some(128),
        head_norms: true,
        biases: [By("attention_bias"), By("attention_bias"), Never],
        window: By("use_sliding_window"),
        first_window: Some(28),
    },
];

/// How the frequencies of rotary embeddings are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// Not at all.
    Default,
    /// All of them divided by a factor.
    Linear {
        /// What they are divided by.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by a factor, high ones not, those between interpolated.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Waves longer than the original positions over this are low.
        low: f64,
        /// Waves shorter than the original positions over this are high.
        high: f64,
        /// The positions that the model was trained with at first.
        positions: f64,
    },
}

/// The sizes and details of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family: `llama`, `mistral`, `qwen2` or `qwen3`.
    pub family: &'static str,
    /// The width of the residual stream.
    pub hidden: usize,
    /// The width of the MLP.
    pub intermediate: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// The width of a head, even.
    pub head_width: usize,
    /// Whether queries and keys are normalized head by head.
    pub(crate) head_norms: bool,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Positions that the model knows.
    pub positions: usize,
    /// What is added to mean squares.
    pub epsilon: f64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether queries, keys and values have biases, the projection of heads, and the MLP.
    pub(crate) biases: [bool; 3],
    /// For each layer how many positions a query sees, itself included, or none where it sees all before it.
    pub(crate) windows: Vec<Option<usize>>,
    /// The base of rotary frequencies.
    pub(crate) rope_theta: f64,
    /// How these are scaled.
    pub(crate) rope_scaling: RopeScaling,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// The token that begins a text.
    pub begin: Option<u32>,
}

/// Layers, widths and vocabularies beyond this are mistakes.
const LIMIT: usize = 1 << 24;

/// The widest head that attention takes.
const WIDEST_HEAD: usize = 256;

impl Config {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// Where it is no JSON, where the model is none of the families that this program knows, or has a detail that it does not know, and where sizes are
    /// missing or do not fit each other. The key is named.
    pub fn parse(json: &str) -> Result<Self> {
        let root: Value = serde_json::from_str(json).context("config.json is no JSON")?;
        Self::read(&Keys { of: "config.json", value: &root })
    }

    fn read(keys: &Keys<'_>) -> Result<Self> {
        let family = family(keys)?;
        let hidden = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
        let otherwise = family.head_width.unwrap_or(hidden / heads);
        let head_width = keys.optional_size("head_dim")?.unwrap_or(otherwise);
        ensure!(
            heads.is_multiple_of(kv_heads),
            "config.json: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"
        );
        ensure!(
            (2..=WIDEST_HEAD).contains(&head_width) && head_width.is_multiple_of(2),
            "config.json: heads are {head_width} wide; they must be even and at most {WIDEST_HEAD} wide"
        );
        let act = keys.text("hidden_act")?.unwrap_or("silu");
        ensure!(act == "silu", "config.json: hidden_act is {act:?}; only \"silu\" is known");
        let (rope_theta, rope_scaling) = rope(keys)?;
        let [inner, outer, mlp] = family.biases;
        Ok(Self {
            family: family.name,
            hidden,
            intermediate: keys.size("intermediate_size")?,
            heads,
            kv_heads,
            head_width,
            head_norms: family.head_norms,
            vocabulary: keys.size("vocab_size")?,
            positions: keys.size("max_position_embeddings")?,
            epsilon: keys.positive("rms_norm_eps")?.unwrap_or(1e-6),
            tied: keys.flag("tie_word_embeddings")?,
            biases: [inner.read(keys)?, outer.read(keys)?, mlp.read(keys)?],
            windows: windows(keys, family)?,
            rope_theta,
            rope_scaling,
            ends: keys.tokens("eos_token_id")?,
            begin: keys.tokens("bos_token_id")?.first().copied(),
        })
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }
}

fn family(keys: &Keys<'_>) -> Result<&'static Family> {
    let known = FAMILIES.each_ref().map(|family| family.name).join(", ");
    let Some(name) = keys.text("model_type")? else {
        bail!("config.json has no model_type; this program runs {known}");
    };
    match FAMILIES.iter().find(|family| family.name == name) {
        Some(family) => Ok(family),
        None => bail!("config.json: model_type is {name:?}; this program runs {known}"),
    }
}

/// The window of each layer.
fn windows(keys: &Keys<'_>, family: &Family) -> Result<Vec<Option<usize>>> {
    let layers = keys.size("num_hidden_layers")?;
    let in_use = family.window.read(keys)?;
    // Without the key it is transformers' default; `null` is none.
    let window = match keys.value.get("sliding_window") {
        _ if !in_use => None,
        None => Some(4096),
        Some(_) => keys.optional_size("sliding_window")?,
    };
    let Some(kinds) = keys.get("layer_types") else {
        let full = match family.first_window {
            Some(otherwise) => match keys.get("max_window_layers").and_then(Value::as_u64) {
                Some(0) => 0,
                _ => keys.optional_size("max_window_layers")?.unwrap_or(otherwise),
            },
            None => 0,
        };
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= full)).collect());
    };
    let kinds = kinds.as_array().context("config.json: layer_types is no list")?;
    ensure!(
        kinds.len() == layers,
        "config.json: layer_types has {} entries for num_hidden_layers {layers}",
        kinds.len()
    );
    let window = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => {
            let window = window.context("config.json: layer_types has \"sliding_attention\", but there is no sliding_window in use")?;
            Ok(Some(window))
        }
        _ => bail!(
            "config.json: layer_types has {kind}; \"full_attention\" and \"sliding_attention\" are known"
        ),
    };
    kinds.iter().map(window).collect()
}

/// Base and scaling as transformers 5.24 reads them: what `rope_scaling` has, or else `rope_parameters`, and beside it the older keys of the file.
fn rope(keys: &Keys<'_>) -> Result<(f64, RopeScaling)> {
    let scaling = match keys.below("rope_scaling")? {
        Some(older) => Some(older),
        None => keys.below("rope_parameters")?,
    };
    let given = |key| scaling.as_ref().map_or(Ok(None), |scaling| scaling.given(key));
    let theta = given("rope_theta")?.or(keys.given("rope_theta")?).unwrap_or(10_000.0);
    let whole = given("partial_rotary_factor")?.or(keys.positive("partial_rotary_factor")?);
    ensure!(
        whole.is_none_or(|factor| factor == 1.0),
        "config.json: partial_rotary_factor is not 1; heads that turn in part are not known"
    );
    let Some(scaling) = scaling else { return Ok((theta, RopeScaling::Default)) };
    let nested = scaling.value.as_object().into_iter().flatten();
    if let Some((key, _)) = nested.into_iter().find(|(_, value)| value.is_object()) {
        bail!(
            "{}: {key:?} has settings of its own; layers that turn differently are not known",
            scaling.of
        );
    }
    let kind = ["rope_type", "type"].into_iter().find(|key| scaling.value.get(key).is_some());
    let kind = match kind {
        Some(key) => {
            let kind = scaling.text(key)?;
            kind.with_context(|| format!("{}: {key} is null; expected a text", scaling.of))?
        }
        None => {
            let factor = scaling.get("factor").is_some();
            ensure!(
                !factor,
                "{} have a factor, but no rope_type that says what it is for",
                scaling.of
            );
            "default"
        }
    };
    let needed = |key: &str| {
        let value = scaling.positive(key)?;
        value.with_context(|| format!("{} has no {key}, which {kind:?} needs", scaling.of))
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: needed("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low: needed("low_freq_factor")?,
            high: needed("high_freq_factor")?,
            positions: {
                let key = "original_max_position_embeddings";
                let positions = keys.given(key)?.or(scaling.given(key)?);
                let positions = positions.or(keys.positive("max_position_embeddings")?);
                positions.context("config.json has no max_position_embeddings")?
            },
        },
        _ => bail!(
            "{}: the rope type is {kind:?}; \"default\", \"linear\" and \"llama3\" are known",
            scaling.of
        ),
    };
    if let RopeScaling::Llama3 { low, high, .. } = scaling {
        ensure!(
            low < high,
            "config.json: low_freq_factor {low} is not below high_freq_factor {high}"
        );
    }
    Ok((theta, scaling))
}

/// The keys of an object of a file.
pub(crate) struct Keys<'a> {
    /// What messages call it.
    pub(crate) of: &'static str,
    pub(crate) value: &'a Value,
}

impl<'a> Keys<'a> {
    /// What a key has, `null` being as good as nothing.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, key: &str, value: &Value, expected: &str) -> Result<T> {
        let shown: String = value.to_string().chars().take(60).collect();
        bail!("{}: {key} is {shown}; expected {expected}", self.of)
    }

    /// The settings below a key: none where it has nothing, as Python takes it.
    fn below(&self, key: &'static str) -> Result<Option<Keys<'a>>> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(None),
            Some(Value::Array(list)) if list.is_empty() => Ok(None),
            Some(Value::Object(settings)) if settings.is_empty() => Ok(None),
            Some(value) if value.is_object() => {
                Ok(Some(Keys { of: "config.json: the rope settings", value }))
            }
            Some(value) => self.wrong(key, value, "an object"),
        }
    }

    /// What is made of the value of a key, where there is one.
    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        make: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        make(value).map_or_else(|| self.wrong(key, value, expected), |made| Ok(Some(made)))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a text", Value::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        let is_positive = |number: &f64| *number > 0.0 && number.is_finite();
        self.read(key, "a positive number", |value| value.as_f64().filter(is_positive))
    }

    /// A whole number.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a whole number", |value| value.as_u64()?.try_into().ok())
    }

    /// A positive number where the key is there, and not `null` either.
    fn given(&self, key: &str) -> Result<Option<f64>> {
        match self.value.get(key) {
            Some(value @ Value::Null) => self.wrong(key, value, "a positive number"),
            _ => self.positive(key),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let fits = |size: &usize| (1..=LIMIT).contains(size);
        self.read(key, "a whole number from 1 to 2^24", |value| size(value).filter(fits))
    }

    fn size(&self, key: &str) -> Result<usize> {
        let size = self.optional_size(key)?;
        size.with_context(|| format!("{} has no {key}", self.of))
    }

    /// A token, or a list of them.
    pub(crate) fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let one = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = self.read(key, "a token, or a list of tokens", |value| match value {
            Value::Array(tokens) => tokens.iter().map(one).collect(),
            token => one(token).map(|token| vec![token]),
        });
        Ok(tokens?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(family: &str, change: impl FnOnce(&mut Value)) -> Result<Config> {
        let mut config = json!({
            "model_type": family, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
            "vocab_size": 32, "max_position_embeddings": 128,
        });
        change(&mut config);
        Config::parse(&config.to_string())
    }

    #[test]
    fn windows_are_those_of_the_family() {
        let windows = |family, change: &dyn Fn(&mut Value)| {
            config(family, change).expect("a configuration").windows
        };
        assert_eq!(windows("mistral", &|_| ()), [Some(4096); 4]);
        assert_eq!(windows("mistral", &|c| c["sliding_window"] = Value::Null), [None; 4]);
        assert_eq!(windows("mistral", &|c| c["sliding_window"] = json!(8)), [Some(8); 4]);
        assert_eq!(windows("llama", &|c| c["sliding_window"] = json!(8)), [None; 4]);
        let qwen = |c: &mut Value| {
            c["sliding_window"] = json!(8);
            c["use_sliding_window"] = json!(true);
            c["max_window_layers"] = json!(3);
        };
        assert_eq!(windows("qwen2", &qwen), [None, None, None, Some(8)]);
        let all = |c: &mut Value| {
            qwen(c);
            c["max_window_layers"] = json!(0);
        };
        assert_eq!(windows("qwen3", &all), [Some(8); 4]);
        let listed = |c: &mut Value| {
            qwen(c);
            let [full, sliding] = ["full_attention", "sliding_attention"];
            c["layer_types"] = json!([sliding, full, full, sliding]);
        };
        assert_eq!(windows("qwen2", &listed), [Some(8), None, None, Some(8)]);
        assert_eq!(config("qwen3", |_| ()).expect("a configuration").head_width, 128);
        assert_eq!(config("llama", |_| ()).expect("a configuration").head_width, 64);
    }
}
