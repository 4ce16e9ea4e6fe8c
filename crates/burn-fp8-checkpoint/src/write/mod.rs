//! Writing checkpoints, in compressed-tensors' form or DeepSeek's.

mod config;
mod partial;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use burn_fp8_core::e8m0;
use config::{compressed_tensors, config, deepseek};
use partial::{CONFIG, MODEL, Partial};
use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::layer::{Activations, QuantizedLinear};
use crate::safetensors::{Dtype, MAX_NAME};
use crate::scheme::{ActivationScaling, MX_BLOCK, Scheme, WeightScaling};
use crate::text;

/// What models call their last layer.
const HEAD: &str = "lm_head";

/// Layers and tensors to be written as a checkpoint that vLLM, SGLang and transformers load: of [compressed-tensors](Self::new), or of
/// [DeepSeek's layout](Self::deepseek).
///
/// Weights stay `[out, in]`, E4M3. `weight_scale` is F32: `[1]` per tensor, `[out, 1]` per channel, one for each block; or bytes of E8M0 `[out, in / 32]` for MXFP8.
/// `input_scale` is F32 `[1]`, and `bias` F32 `[out]`. Loaders that keep scales in the model's own type round them to it.
#[derive(Debug, Default)]
pub struct Export<'a> {
    form: Form,
    layers: BTreeMap<&'a str, (&'a QuantizedLinear, Scheme)>,
    tensors: BTreeMap<&'a str, (Dtype, &'a [usize], &'a [u8])>,
    files: BTreeMap<&'a str, &'a [u8]>,
}

/// Whose form is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    CompressedTensors,
    DeepSeek,
}

impl Form {
    /// What the scales of a weight are called.
    fn weight_scale(self) -> &'static str {
        match self {
            Self::CompressedTensors => "weight_scale",
            Self::DeepSeek => "weight_scale_inv",
        }
    }
}

impl<'a> Export<'a> {
    /// Nothing yet, to be written as compressed-tensors does: `float-quantized`, and `mxfp8-quantized` for layers in MXFP8.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, to be written as DeepSeek-V3 and Qwen3 are: `fp8`, with `weight_scale_inv`. Weights have scales of blocks, `128 × 128` for most loaders, and
    /// activations as many elements for a scale as a block has columns. All layers have the same scheme.
    pub fn deepseek() -> Self {
        Self { form: Form::DeepSeek, ..Self::default() }
    }

    /// Adds a quantized layer. `name` is that of the module, without `.weight`.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where the name is empty, too long or taken, or where the form has no word for how weight or activations are scaled.
    pub fn linear(
        &mut self,
        name: &'a str,
        layer: &'a QuantizedLinear,
    ) -> Result<&mut Self, CheckpointError> {
        self.check_name(name)?;
        let scheme = scheme(layer, self.form)?;
        if let (Form::DeepSeek, Some((_, (_, other)))) = (self.form, self.layers.iter().next())
            && *other != scheme
        {
            let found = format!("weights {}, activations {}", scheme.weight, scheme.activations);
            let expected = format!("weights {}, activations {}", other.weight, other.activations);
            let expected = format!("the scheme of the other layers: {expected}");
            return Err(CheckpointError::invalid("a layer to write", found, expected));
        }
        self.layers.insert(name, (layer, scheme));
        Ok(self)
    }

    /// Adds a tensor as it is: its bytes are little-endian, row by row.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where the name is empty, too long, `__metadata__` or taken, where the type is FP8, or the bytes are not those of type and shape.
    pub fn tensor(
        &mut self,
        name: &'a str,
        dtype: Dtype,
        shape: &'a [usize],
        bytes: &'a [u8],
    ) -> Result<&mut Self, CheckpointError> {
        self.check_name(name)?;
        if dtype.is_fp8() {
            let expected = "another type: codes without scales mean nothing, and layers are added with `linear`";
            return Err(CheckpointError::invalid(of_name(name), dtype.name(), expected));
        }
        Part::new(name, dtype, shape, bytes)?;
        self.tensors.insert(name, (dtype, shape, bytes));
        Ok(self)
    }

    /// Adds a file that models have beside their weights, such as `tokenizer.json`: it is there as soon as the folder is.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where the name is a path, that of weights or of the configuration, or taken.
    pub fn file(&mut self, name: &'a str, bytes: &'a [u8]) -> Result<&mut Self, CheckpointError> {
        let is_name = Path::new(name).file_name().is_some_and(|own| own == name);
        let is_ours = name == CONFIG || name.contains(".safetensors");
        if !is_name || is_ours || self.files.contains_key(name) {
            let expected = "the name of another file, in no folder of its own";
            return Err(CheckpointError::invalid("a file to write", text::name(name), expected));
        }
        self.files.insert(name, bytes);
        Ok(self)
    }

    fn check_name(&self, name: &str) -> Result<(), CheckpointError> {
        let taken = self.layers.contains_key(name) || self.tensors.contains_key(name);
        // Names of a layer's tensors are longer than its own.
        let fits = (1..=MAX_NAME - 16).contains(&name.len());
        let found = match (fits, taken, name) {
            (false, ..) => format!("a name of {} bytes", name.len()),
            (_, true, _) => "it twice".into(),
            (.., "__metadata__") => "the name of safetensors' metadata".into(),
            _ => return Ok(()),
        };
        let expected = format!("a name of its own, of 1 to {} bytes", MAX_NAME - 16);
        Err(CheckpointError::invalid(of_name(name), found, expected))
    }

    /// Writes `model.safetensors`, `config.json` and the [files](Self::file) into a folder, which is made if there is none, and must be empty if there is. `config` is the text of the
    /// model's own `config.json`; our `quantization_config` replaces one that it may have.
    ///
    /// The folder is filled beside its place, under its name and `.partial`, and gets its name when all of it is on the disk: what interrupts a write leaves
    /// the old folder or the whole new one. What an interrupted write left is replaced, so that two programs must not write the same folder at the same time.
    /// Before tensors are written, the header and the configuration are read as [`Checkpoint::open`] does.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where nothing is quantized, where a tensor has the name of one of a layer's, or where `config` is no JSON object.
    /// What `Checkpoint::open` says, where it would not take what is to be written. [`CheckpointError::Io`] where the folder holds something, or cannot be
    /// written to.
    pub fn write(&self, folder: impl AsRef<Path>, config: &str) -> Result<(), CheckpointError> {
        let config = self.config(config)?;
        let mut parts = self.parts();
        let header = header(&mut parts);
        let data = || parts.iter().map(Part::bytes);
        let length = header.len() + data().map(<[u8]>::len).sum::<usize>();
        let files = [CONFIG, MODEL].into_iter().chain(self.files.keys().copied()).collect();
        let partial = Partial::new(folder.as_ref(), files)?;
        partial.write(CONFIG, config.len(), [config.as_bytes()])?;
        partial.write(MODEL, length, [&header[..]])?;
        self.check(&Checkpoint::open(partial.path())?)?;
        partial.write(MODEL, length, std::iter::once(&header[..]).chain(data()))?;
        for (name, bytes) in &self.files {
            partial.write(name, bytes.len(), [*bytes])?;
        }
        partial.place()
    }

    /// Whether a reader takes it for what it is.
    fn check(&self, read: &Checkpoint) -> Result<(), CheckpointError> {
        let meant = self.layers.iter();
        let meant = meant.map(|(name, (layer, scheme))| (*name, *scheme, layer.bias().is_some()));
        let read = read.layers().iter().map(|layer| {
            let scheme = Scheme { weight: layer.weight, activations: layer.activations };
            (&layer.name[..], scheme, layer.bias)
        });
        let differs = meant.clone().zip(read.clone()).find(|(meant, read)| meant != read);
        match (differs, meant.len() == read.len()) {
            (None, true) => Ok(()),
            (differs, _) => {
                let name = differs.map_or("", |((name, ..), _)| name);
                let found =
                    format!("{}, which a reader takes for something else", text::name(name));
                let expected = "names of modules";
                Err(CheckpointError::invalid("a checkpoint to write", found, expected))
            }
        }
    }

    fn config(&self, base: &str) -> Result<String, CheckpointError> {
        if self.layers.is_empty() {
            let expected = "a quantized layer at least";
            return Err(CheckpointError::invalid("a checkpoint to write", "none", expected));
        }
        for layer in self.layers.keys() {
            for field in ["weight", self.form.weight_scale(), "input_scale", "bias"] {
                let name = format!("{layer}.{field}");
                if self.tensors.contains_key(&name[..]) {
                    let expected = "names that are not those of a layer's tensors";
                    return Err(CheckpointError::invalid(of_name(&name), "it twice", expected));
                }
            }
        }
        let schemes = self.layers.iter().map(|(name, (_, scheme))| (*name, *scheme));
        // A class is not known here: embeddings and convolutions among them do no harm, as they are not `Linear`.
        let weights = self.tensors.iter().filter(|(_, (_, shape, _))| shape.len() >= 2);
        let mut ignored: Vec<_> =
            weights.filter_map(|(name, _)| name.strip_suffix(".weight")).collect();
        // A head that is the embedding has no tensor, and yet is a `Linear`.
        if !self.layers.contains_key(HEAD) && !ignored.contains(&HEAD) {
            ignored.push(HEAD);
            ignored.sort_unstable();
        }
        match self.form {
            Form::CompressedTensors => config(base, &compressed_tensors(schemes, &ignored)),
            Form::DeepSeek => config(base, &deepseek(schemes, &ignored)),
        }
    }

    fn parts(&self) -> Vec<Part<'a>> {
        let mut parts = vec![];
        for (layer, (linear, scheme)) in &self.layers {
            let mut add = |field, dtype, shape, bytes| {
                parts.push(Part { name: format!("{layer}.{field}"), dtype, shape, bytes });
            };
            let [out, input] = linear.shape();
            let values = linear.scales().values();
            let scale = match scheme.weight {
                WeightScaling::PerTensor => vec![1],
                weight => weight.grid([out, input]).to_vec(),
            };
            let (dtype, scales) = match scheme.weight {
                WeightScaling::Mx => (Dtype::U8, values.iter().map(|x| exponent(*x)).collect()),
                _ => (Dtype::F32, little_endian(values)),
            };
            let codes = Cow::Borrowed(linear.codes());
            add("weight", Dtype::F8_E4M3, vec![out, input], codes);
            add(self.form.weight_scale(), dtype, scale, scales);
            if let Activations::Static(scale) = linear.activations() {
                add("input_scale", Dtype::F32, vec![1], little_endian(&[scale]));
            }
            if let Some(bias) = linear.bias() {
                add("bias", Dtype::F32, vec![out], little_endian(bias));
            }
        }
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let (name, bytes) = (name.to_string(), Cow::Borrowed(*bytes));
            parts.push(Part { name, dtype: *dtype, shape: shape.to_vec(), bytes });
        }
        parts
    }
}

/// How the scales of a layer are declared, if the form can.
fn scheme(layer: &QuantizedLinear, form: Form) -> Result<Scheme, CheckpointError> {
    let scales = layer.scales();
    let [grid, block] = [scales.grid(), scales.block()];
    let in_blocks = matches!(layer.activations(), Activations::Blocks { .. } | Activations::Mx);
    let is_mx = block == [1, MX_BLOCK] && scales.values().iter().all(|scale| is_e8m0(*scale));
    let weight = match grid {
        _ if layer.activations() == Activations::Mx && is_mx => WeightScaling::Mx,
        // A single row is both; one scale per tensor is the simpler of them.
        [1, 1] if !in_blocks => WeightScaling::PerTensor,
        [rows, 1] if !in_blocks && rows == layer.shape()[0] => WeightScaling::PerChannel,
        _ => WeightScaling::Blocks(block),
    };
    let activations = match layer.activations() {
        Activations::None => ActivationScaling::None,
        Activations::Static(_) => ActivationScaling::Static,
        Activations::PerToken => ActivationScaling::PerToken,
        Activations::PerTensor => ActivationScaling::PerTensor,
        Activations::Blocks { size, power_of_two } => {
            ActivationScaling::Blocks { size, power_of_two }
        }
        Activations::Mx => ActivationScaling::Mx,
    };
    let expected = match (form, weight, activations) {
        (
            Form::DeepSeek,
            WeightScaling::Blocks([_, columns]),
            ActivationScaling::Blocks { size, .. },
        ) if columns == size => None,
        (Form::DeepSeek, ..) => {
            Some("scales of blocks, of as many columns as activations have elements for a scale")
        }
        (_, _, ActivationScaling::PerTensor) => {
            Some("activations None, Static, PerToken, Blocks or Mx: others are not written")
        }
        (_, _, ActivationScaling::Blocks { power_of_two: true, .. }) => {
            Some("scales that need be no powers of two: only `Export::deepseek` can declare these")
        }
        (_, WeightScaling::Mx, _) => None,
        (_, _, ActivationScaling::Mx) => Some(
            "MXFP8 weights, blocks of 1×32 with scales from 2^-127 to 2^127, as activations are",
        ),
        _ => None,
    };
    match expected {
        None => Ok(Scheme { weight, activations }),
        Some(expected) => {
            let found = format!("weights {weight}, activations {activations}");
            Err(CheckpointError::invalid("a layer to write", found, expected))
        }
    }
}

/// The byte of E8M0 of a power of two from 2^-127 to 2^127.
fn exponent(scale: f32) -> u8 {
    (scale.to_bits() >> (f32::MANTISSA_DIGITS - 1)) as u8
}

/// Whether E8M0 has this number.
fn is_e8m0(scale: f32) -> bool {
    e8m0::decode(exponent(scale)) == scale
}

/// A tensor to be written.
pub(crate) struct Part<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Part<'a> {
    /// Of bytes, if there are as many as type and shape have.
    pub(crate) fn new(
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        bytes: &'a [u8],
    ) -> Result<Self, CheckpointError> {
        if dtype.bytes_of(shape) != Some(bytes.len() as u64) {
            let found = format!("{} bytes", bytes.len());
            let expected = format!("those of {dtype} {shape:?}");
            return Err(CheckpointError::invalid(of_name(name), found, expected));
        }
        Ok(Self { name: name.into(), dtype, shape: shape.into(), bytes: bytes.into() })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is before the data: the header's length and the header, filled with spaces to a multiple of 8. Sorts the data as safetensors does, larger elements first
/// and then by name, so that each tensor begins at a multiple of its element's size.
pub(crate) fn header(parts: &mut [Part<'_>]) -> Vec<u8> {
    parts.sort_by(|a, b| b.dtype.bits().cmp(&a.dtype.bits()).then(a.name.cmp(&b.name)));
    let mut header = Map::new();
    // transformers asks for it.
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0;
    for Part { name, dtype, shape, bytes } in &*parts {
        let begin = end;
        end += bytes.len();
        let tensor = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), tensor);
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

pub(crate) fn of_name(name: &str) -> String {
    format!("the tensor {}", text::name(name))
}

fn little_endian(numbers: &[f32]) -> Cow<'static, [u8]> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>().into()
}
