//! A checkpoint to be written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;

use super::config::config;
use super::header::{Part, header};
use super::kind::{Kind, Weight};
use super::partial::{Partial, sync_folder};
use crate::error::CheckpointError;
use crate::layer::{Activations, QuantizedLinear};
use crate::safetensors::{Dtype, MAX_NAME};
use crate::text;

/// Layers and tensors to be written as a checkpoint of compressed-tensors, format `float-quantized`, the one that vLLM, SGLang and transformers load.
///
/// Weights stay `[out, in]`, E4M3. `weight_scale` is F32, `[1]` per tensor or `[out, 1]` per channel, `input_scale` F32 `[1]`, and `bias` F32 `[out]`. Loaders
/// that keep scales in the model's own type round them to it.
#[derive(Debug, Default)]
pub struct Export<'a> {
    layers: BTreeMap<&'a str, (&'a QuantizedLinear, Kind)>,
    tensors: BTreeMap<&'a str, (Dtype, &'a [usize], &'a [u8])>,
}

impl<'a> Export<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a quantized layer. `name` is that of the module, without `.weight`.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where the name is empty, too long or taken, where scales are neither per tensor nor per channel, or where activations
    /// are neither [`None`](Activations::None), [`Static`](Activations::Static) nor [`PerToken`](Activations::PerToken).
    pub fn linear(
        &mut self,
        name: &'a str,
        layer: &'a QuantizedLinear,
    ) -> Result<&mut Self, CheckpointError> {
        self.check_name(name)?;
        let kind = Kind::of(layer)?;
        self.layers.insert(name, (layer, kind));
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
        if dtype.bytes_of(shape) != Some(bytes.len() as u64) {
            let found = format!("{} bytes", bytes.len());
            let expected = format!("those of {dtype} {shape:?}");
            return Err(CheckpointError::invalid(of_name(name), found, expected));
        }
        self.tensors.insert(name, (dtype, shape, bytes));
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

    /// Writes `model.safetensors` and `config.json` into a folder, which is made if there is none. `config` is the text of the model's own `config.json`; our
    /// `quantization_config` replaces one that it may have.
    ///
    /// Both files are written under other names, and get theirs when all of them is on the disk, the configuration last: a folder without it is no
    /// checkpoint. A folder that holds a checkpoint already is an error; two programs must not write into one folder at the same time.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where nothing is quantized, where a tensor has the name of one of a layer's, or where `config` is no JSON object.
    /// [`CheckpointError::Io`] where the folder already holds a checkpoint, or cannot be written to.
    pub fn write(&self, folder: impl AsRef<Path>, config: &str) -> Result<(), CheckpointError> {
        let folder = folder.as_ref();
        let config = self.config(config)?;
        let mut parts = self.parts();
        let header = header(&mut parts)?;
        fs::create_dir_all(folder).map_err(|reason| CheckpointError::write(folder, reason))?;
        let (model, json) = (folder.join("model.safetensors"), folder.join("config.json"));
        let others = ["model.safetensors.index.json", "hf_quant_config.json"];
        let others = others.map(|name| folder.join(name));
        if let Some(taken) = [&model, &json].into_iter().chain(&others).find(|path| path.exists()) {
            let reason = "it is there already; give a folder without a checkpoint";
            let reason = Error::new(ErrorKind::AlreadyExists, reason);
            return Err(CheckpointError::write(taken, reason));
        }
        let data = parts.iter().map(|part| &part.bytes[..]);
        let model = Partial::write(model, std::iter::once(&header[..]).chain(data))?;
        let json = Partial::write(json, [config.as_bytes()])?;
        model.place()?;
        json.place()?;
        sync_folder(folder);
        Ok(())
    }

    fn config(&self, base: &str) -> Result<String, CheckpointError> {
        if self.layers.is_empty() {
            let expected = "a quantized layer at least";
            return Err(CheckpointError::invalid("a checkpoint to write", "none", expected));
        }
        for layer in self.layers.keys() {
            for field in ["weight", "weight_scale", "input_scale", "bias"] {
                let name = format!("{layer}.{field}");
                if self.tensors.contains_key(&name[..]) {
                    let expected = "names that are not those of a layer's tensors";
                    return Err(CheckpointError::invalid(of_name(&name), "it twice", expected));
                }
            }
        }
        let kinds = self.layers.iter().map(|(name, (_, kind))| (*name, *kind)).collect();
        // A class is not known here: embeddings and convolutions among them do no harm, as they are not `Linear`.
        let weights = self.tensors.iter().filter(|(_, (_, shape, _))| shape.len() >= 2);
        let ignored: Vec<_> =
            weights.filter_map(|(name, _)| name.strip_suffix(".weight")).collect();
        self::config(base, &kinds, &ignored)
    }

    fn parts(&self) -> Vec<Part<'a>> {
        let mut parts = vec![];
        for (layer, (linear, kind)) in &self.layers {
            let mut add = |field, dtype, shape, bytes| {
                parts.push(Part { name: format!("{layer}.{field}"), dtype, shape, bytes });
            };
            let [out, input] = linear.shape();
            let scale = match kind.weight {
                Weight::PerTensor => vec![1],
                Weight::PerChannel => vec![out, 1],
            };
            let codes = Cow::Borrowed(linear.codes());
            add("weight", Dtype::F8_E4M3, vec![out, input], codes);
            add("weight_scale", Dtype::F32, scale, little_endian(linear.scales().values()));
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

fn of_name(name: &str) -> String {
    format!("the tensor {}", text::name(name))
}

fn little_endian(numbers: &[f32]) -> Cow<'static, [u8]> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>().into()
}
