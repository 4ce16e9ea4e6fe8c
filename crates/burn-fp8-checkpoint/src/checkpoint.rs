//! A checkpoint, opened.

use std::path::Path;

use crate::config;
use crate::error::CheckpointError;
use crate::files::{Id, Location, Tensors};
use crate::layer::{Activations, PlainTensor, QuantizedLinear, Scales};
use crate::numbers::{first_nan, floats, is_scale};
use crate::plan::{self, Plan, PlannedLayer};
use crate::safetensors::{Dtype, TensorInfo};
use crate::scheme::{ActivationScaling, Format, LayerInfo, Method};
use crate::text;

/// An FP8 checkpoint as the hub has them: a configuration, and safetensors files.
///
/// Opening reads configuration, index and headers, and checks types and shapes of all tensors against the configuration. Data is read when a layer or
/// tensor is asked for, by its range in the file; several threads may do so at once.
#[derive(Debug)]
pub struct Checkpoint {
    tensors: Tensors,
    plan: Plan,
    json: String,
    format: Format,
    layers: Vec<LayerInfo>,
    plain: Vec<TensorInfo>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors`, or `model.safetensors.index.json` and its shards; or a safetensors file with
    /// `config.json` beside it. `hf_quant_config.json` is read where there is one.
    ///
    /// # Errors
    /// [`CheckpointError`] where a file cannot be read or is damaged, where the configuration declares what this crate does not read, and where a
    /// tensor is missing or not what the configuration means. It names the file, the tensor or key, what was found and what was expected.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let mut warnings = vec![];
        let location = Location::find(path.as_ref())?;
        let config = config::read(&location, &mut warnings)?;
        let tensors = Tensors::open(&location, &mut warnings)?;
        let plan = plan::make(&tensors, &config, &location.config, &mut warnings)?;
        let layers: Vec<_> = plan.layers.iter().map(|layer| layer.info.clone()).collect();
        let method = config.rules.map_or(Method::None, |rules| rules.method);
        Ok(Self {
            json: config.json,
            format: Format::new(method, &layers),
            plain: plan.plain.iter().map(|id| tensors.info(*id).clone()).collect(),
            layers,
            warnings,
            plan,
            tensors,
        })
    }

    /// What it is: method, scales, activations. It prints as one line.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The quantized linear layers, by name.
    pub fn layers(&self) -> &[LayerInfo] {
        &self.layers
    }

    /// The tensors that belong to no quantized layer, by name: norms, embeddings, layers that are not quantized.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.plain
    }

    /// What is odd about it and yet no error.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of `config.json`.
    pub fn config(&self) -> &str {
        &self.json
    }

    /// Reads a quantized layer by its name, without `.weight`.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where there is no such layer. [`CheckpointError::Tensor`] where a scale is zero, negative, infinite or NaN, or a code
    /// of the weight is NaN: no product with such a weight is a number, so that there is nothing to load. [`CheckpointError::Io`],
    /// [`CheckpointError::File`] and [`CheckpointError::Memory`] where its bytes cannot be had.
    pub fn linear(&self, name: &str) -> Result<QuantizedLinear, CheckpointError> {
        let found = self.layers.binary_search_by(|layer| layer.name[..].cmp(name));
        let Ok(place) = found else {
            return Err(self.unknown(
                "layer",
                name,
                self.layers.iter().map(|layer| &layer.name[..]),
            ));
        };
        let PlannedLayer { info, weight, scale, input_scale, bias } = &self.plan.layers[place];
        let scales = self.tensors.numbers(*scale)?;
        self.check_scales(*scale, 0, &scales)?;
        let activations = self.activations(info.activations, *input_scale)?;
        let codes = self.tensors.read(*weight)?;
        self.check_codes(*weight, 0, &codes)?;
        let bias = bias.map(|bias| self.tensors.numbers(bias)).transpose()?;
        let scales = Scales::unchecked(info.shape, info.weight.block(info.shape), scales);
        Ok(QuantizedLinear::unchecked(info.shape, codes, scales, bias, activations))
    }

    /// Reads a tensor by its name, as it is stored. It may be one of a quantized layer, too.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where there is no such tensor; [`CheckpointError::Io`], [`CheckpointError::File`] and [`CheckpointError::Memory`] where
    /// its bytes cannot be had.
    pub fn tensor(&self, name: &str) -> Result<PlainTensor, CheckpointError> {
        self.tensors.plain(self.find(name)?)
    }

    /// Reads the bits of a tensor of BF16 or F16, row by row, in memory that is aligned for them. Values are not judged.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor); [`CheckpointError::Tensor`] for other types.
    pub fn halves(&self, name: &str) -> Result<Vec<u16>, CheckpointError> {
        let id = self.find(name)?;
        match self.tensors.info(id).dtype {
            Dtype::BF16 | Dtype::F16 => self.tensors.halves(id),
            other => {
                Err(self.tensors.error(id, other.name(), "BF16 or F16", "read it with `tensor`"))
            }
        }
    }

    fn find(&self, name: &str) -> Result<Id, CheckpointError> {
        let known = || self.plain.iter().map(|info| &info.name[..]);
        self.tensors.find(name).ok_or_else(|| self.unknown("tensor", name, known()))
    }

    fn activations(
        &self,
        declared: ActivationScaling,
        scale: Option<Id>,
    ) -> Result<Activations, CheckpointError> {
        Ok(match (declared, scale) {
            (ActivationScaling::Static, Some(scale)) => {
                let numbers = self.tensors.numbers(scale)?;
                self.check_scales(scale, 0, &numbers)?;
                Activations::Static(numbers[0])
            }
            (ActivationScaling::Static | ActivationScaling::None, _) => Activations::None,
            (ActivationScaling::PerToken, _) => Activations::PerToken,
            (ActivationScaling::PerTensor, _) => Activations::PerTensor,
            (ActivationScaling::Blocks { size, power_of_two }, _) => {
                Activations::Blocks { size, power_of_two }
            }
            (ActivationScaling::Mx, _) => Activations::Mx,
        })
    }

    fn unknown<'a>(
        &self,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> CheckpointError {
        let expected = format!("one of {}", text::some_names(known));
        CheckpointError::invalid(format!("a {what} of the checkpoint"), text::name(name), expected)
    }

    /// Reads everything once, a few megabytes at a time, and checks what [`linear`](Self::linear) checks of each layer: scales, codes, static scales of
    /// activations. Plain tensors and biases are read; their values are not judged.
    ///
    /// # Errors
    /// The first error that reading a layer or a tensor would give.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        let read = |id: Id| self.tensors.pieces(id, |_, _| Ok(()));
        let scales = |id: Id| {
            let dtype = self.tensors.info(id).dtype;
            self.tensors.pieces(id, |first, bytes| {
                self.check_scales(id, first * 8 / dtype.bits(), &floats(dtype, bytes))
            })
        };
        for layer in &self.plan.layers {
            scales(layer.scale)?;
            layer.input_scale.map(scales).transpose()?;
            let codes = |first, codes: &[u8]| self.check_codes(layer.weight, first, codes);
            self.tensors.pieces(layer.weight, codes)?;
            layer.bias.map(read).transpose()?;
        }
        self.plan.plain.iter().try_for_each(|id| read(*id))
    }

    /// Checks scales, of which the first has this place in the tensor.
    fn check_scales(&self, id: Id, first: u64, scales: &[f32]) -> Result<(), CheckpointError> {
        let Some(place) = scales.iter().position(|scale| !is_scale(*scale)) else { return Ok(()) };
        let found = format!("{}{}", scales[place], self.at(id, first + place as u64));
        let advice = "the layer was quantized badly: fetch the file again, or quantize anew";
        Err(self.tensors.error(id, found, "positive, finite scales", advice))
    }

    /// Checks codes of a weight, of which the first has this place in the tensor.
    ///
    /// NaN is an error, not a warning: one such code makes an output NaN for every input, and a checkpoint that was written whole has none, as quantization
    /// saturates. [`Checkpoint::tensor`] still gives the codes as they are.
    fn check_codes(&self, id: Id, first: u64, codes: &[u8]) -> Result<(), CheckpointError> {
        let Some(place) = first_nan(codes) else { return Ok(()) };
        let at = self.at(id, first + place as u64);
        let found = format!("the code 0x{:02X}, NaN{at}", codes[place]);
        let advice = "the file is damaged, or the layer was quantized badly: fetch it again";
        Err(self.tensors.error(id, found, "E4M3 codes of numbers", advice))
    }

    /// Where an element is, by its place row by row.
    fn at(&self, id: Id, place: u64) -> String {
        match self.tensors.info(id).shape[..] {
            [] => String::new(),
            [_, columns] => format!(" at [{}, {}]", place / columns as u64, place % columns as u64),
            _ => format!(" at [{place}]"),
        }
    }
}
