//! A checkpoint, opened.

use std::path::Path;

use crate::config::{self, Method};
use crate::error::CheckpointError;
use crate::files::{Id, Location, Tensors};
use crate::format::Format;
use crate::layer::{Activations, LayerInfo, PlainTensor, QuantizedLinear, Scales, TensorInfo};
use crate::plan::{self, PlannedLayer};
use crate::scheme::ActivationScaling;
use crate::values;
use crate::{plan::Plan, text};

/// An FP8 checkpoint as the hub has them: a configuration, and safetensors files.
///
/// Opening reads configuration, index and headers, and checks types and shapes of all tensors against the configuration. Data is read when a layer or
/// tensor is asked for, by its range in the file; several threads may do so at once.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) tensors: Tensors,
    pub(crate) plan: Plan,
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
            plain: plan.plain.iter().map(|id| plan::describe(&tensors, *id)).collect(),
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
        values::check_scales(&self.tensors, *scale, 0, &scales)?;
        let activations = self.activations(info.activations, *input_scale)?;
        let codes = self.tensors.read(*weight)?;
        values::check_codes(&self.tensors, *weight, 0, &codes)?;
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
        let Some(id) = self.tensors.find(name) else {
            return Err(self.unknown("tensor", name, self.plain.iter().map(|info| &info.name[..])));
        };
        let data = self.tensors.read(id)?;
        let info = plan::describe(&self.tensors, id);
        Ok(PlainTensor::new(info, data, self.tensors.path(id).into()))
    }

    fn activations(
        &self,
        declared: ActivationScaling,
        scale: Option<Id>,
    ) -> Result<Activations, CheckpointError> {
        Ok(match (declared, scale) {
            (ActivationScaling::Static, Some(scale)) => {
                let numbers = self.tensors.numbers(scale)?;
                values::check_scales(&self.tensors, scale, 0, &numbers)?;
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
}
