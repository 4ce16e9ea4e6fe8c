//! All layers of a checkpoint.

use super::layer::{self, PlannedLayer};
use super::leftover;
use super::names::{SCALES, key, layer_of};
use crate::config::Config;
use crate::error::CheckpointError;
use crate::files::{Id, Tensors};
use crate::layer::TensorInfo;
use crate::text;

/// What a checkpoint holds.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By name.
    pub(crate) layers: Vec<PlannedLayer>,
    /// Tensors that belong to no layer, by name.
    pub(crate) plain: Vec<Id>,
}

/// Finds all quantized layers: those with an FP8 weight, or with a scale for it.
pub(crate) fn make(
    tensors: &Tensors,
    config: &Config,
    config_path: &std::path::Path,
    warnings: &mut Vec<String>,
) -> Result<Plan, CheckpointError> {
    let name = |id: Id| &tensors.entry(id).name[..];
    let is_quantized = |id: &Id| {
        let entry = tensors.entry(*id);
        let has_scale =
            |layer: &str| SCALES.iter().any(|scale| tensors.find(&key(layer, scale)).is_some());
        layer_of(&entry.name, "weight")
            .is_some_and(|layer| entry.dtype.is_fp8() || has_scale(layer))
    };
    let weights: Vec<_> = tensors.ids().filter(is_quantized).collect();
    let Some(rules) = &config.rules else {
        let fp8 = tensors.ids().find(|id| tensors.entry(*id).dtype.is_fp8());
        return match weights.first().copied().or(fp8) {
            Some(weight) => {
                let dtype = tensors.entry(weight).dtype;
                Err(CheckpointError::Config {
                    path: config_path.into(),
                    key: "quantization_config".into(),
                    found: format!("no such key, while {} is {dtype}", text::name(name(weight))),
                    expected: "a quantization_config that says how FP8 weights are scaled".into(),
                    advice: "fetch config.json again, from where the weights are".into(),
                })
            }
            None => {
                warnings.push("no quantization is declared, and no tensor is FP8".into());
                let plan = Plan { layers: vec![], plain: tensors.ids().collect() };
                leftover::check(tensors, &plan.plain, warnings)?;
                Ok(plan)
            }
        };
    };
    let (mut layers, mut ignored) = (vec![], vec![]);
    let mut used = std::collections::HashSet::new();
    for weight in weights {
        let layer = layer_of(name(weight), "weight").unwrap_or_default();
        let planned = layer::plan(tensors, rules, layer, weight)?;
        if rules.ignores(layer) {
            ignored.push(layer);
        }
        used.extend([planned.weight, planned.scale]);
        used.extend(planned.input_scale.into_iter().chain(planned.bias));
        layers.push(planned);
    }
    if !ignored.is_empty() {
        let names = text::some_names(ignored);
        warnings.push(format!(
            "layers that the configuration leaves out are FP8, with scales, and are read as such: {names}"
        ));
    }
    let plain: Vec<_> = tensors.ids().filter(|id| !used.contains(id)).collect();
    leftover::check(tensors, &plain, warnings)?;
    Ok(Plan { layers, plain })
}

/// A tensor's description for callers.
pub(crate) fn describe(tensors: &Tensors, id: Id) -> TensorInfo {
    let entry = tensors.entry(id);
    TensorInfo {
        name: entry.name.clone(),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
        bytes: entry.bytes,
    }
}
