//! Which tensors make which layers, and whether their types and shapes are what the configuration means.

use std::collections::HashSet;
use std::path::Path;

use crate::config::{Config, Rules};
use crate::error::CheckpointError;
use crate::files::{Id, Tensors};
use crate::numbers::is_float;
use crate::safetensors::{Dtype, TensorInfo};
use crate::scheme::{ActivationScaling, LayerInfo, Scheme, WeightScaling};
use crate::text;

/// What a checkpoint holds.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By name.
    pub(crate) layers: Vec<PlannedLayer>,
    /// Tensors that belong to no layer, by name.
    pub(crate) plain: Vec<Id>,
}

/// Finds all quantized layers: those with an FP8 weight, or with a scale for it. Stacked experts are none.
pub(crate) fn make(
    tensors: &Tensors,
    config: &Config,
    config_path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Plan, CheckpointError> {
    let name = |id: Id| &tensors.info(id).name[..];
    let is_quantized = |id: &Id| {
        let info = tensors.info(*id);
        let has_scale =
            |layer: &str| SCALES.iter().any(|scale| tensors.find(&key(layer, scale)).is_some());
        layer_of(&info.name, "weight")
            .is_some_and(|layer| !are_experts(info) && (info.dtype.is_fp8() || has_scale(layer)))
    };
    let weights: Vec<_> = tensors.ids().filter(is_quantized).collect();
    let Some(rules) = &config.rules else {
        let fp8 = tensors.ids().find(|id| tensors.info(*id).dtype.is_fp8());
        return match weights.first().copied().or(fp8) {
            Some(weight) => {
                let dtype = tensors.info(weight).dtype;
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
                check_plain(tensors, &plan.plain, warnings)?;
                Ok(plan)
            }
        };
    };
    let (mut layers, mut ignored) = (vec![], vec![]);
    let mut used = HashSet::new();
    for weight in weights {
        let layer = layer_of(name(weight), "weight").unwrap_or_default();
        let planned = plan(tensors, rules, layer, weight)?;
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
    check_plain(tensors, &plain, warnings)?;
    Ok(Plan { layers, plain })
}

/// A layer and the places of its tensors.
#[derive(Debug)]
pub(crate) struct PlannedLayer {
    pub(crate) info: LayerInfo,
    pub(crate) weight: Id,
    pub(crate) scale: Id,
    /// The static scale of activations, where one is meant.
    pub(crate) input_scale: Option<Id>,
    pub(crate) bias: Option<Id>,
}

/// Finds and checks the tensors of a layer.
fn plan(
    tensors: &Tensors,
    rules: &Rules,
    layer: &str,
    weight: Id,
) -> Result<PlannedLayer, CheckpointError> {
    let shape = check_weight(tensors, weight)?;
    let scale = find_one(tensors, rules.weight_scale, layer)?;
    let named = scale.map(|scale| tensors.info(scale));
    let Some(Scheme { weight: scaling, activations }) = rules.scheme(layer, named) else {
        let found = "F8_E4M3, and no group of the configuration for it";
        let expected =
            "the name of the layer, an expression for it, or `Linear` among the targets of a group";
        return Err(tensors.error(weight, found, expected, "config.json may be another model's"));
    };
    let missing = || no_scale(tensors, rules, layer, weight, expected_scale(scaling, shape));
    let scale = scale.ok_or_else(missing)?;
    check_scale(tensors, scale, scaling, shape)?;
    let input_scale = match activations {
        ActivationScaling::Static => Some(find_input_scale(tensors, rules, layer, weight)?),
        _ => None,
    };
    let bias = tensors.find(&key(layer, "bias"));
    if let Some(bias) = bias {
        let info = tensors.info(bias);
        if !is_float(info.dtype) || info.shape != [shape[0]] {
            let expected = format!("F32, BF16 or F16 [{}], one for each output", shape[0]);
            return Err(unexpected(tensors, bias, expected));
        }
    }
    let all = [Some(weight), Some(scale), input_scale, bias];
    let info = LayerInfo {
        name: layer.to_owned(),
        shape,
        weight: scaling,
        scale_dtype: tensors.info(scale).dtype,
        activations,
        bias: bias.is_some(),
        bytes: all.into_iter().flatten().map(|id| tensors.info(id).bytes).sum(),
    };
    Ok(PlannedLayer { info, weight, scale, input_scale, bias })
}

fn unexpected(tensors: &Tensors, id: Id, expected: impl Into<String>) -> CheckpointError {
    let info = tensors.info(id);
    tensors.error(id, format!("{} {:?}", info.dtype, info.shape), expected, "")
}

fn check_weight(tensors: &Tensors, weight: Id) -> Result<[usize; 2], CheckpointError> {
    let info = tensors.info(weight);
    match info.shape[..] {
        [out, input] if info.dtype == Dtype::F8_E4M3 && out > 0 && input > 0 => Ok([out, input]),
        _ => Err(unexpected(tensors, weight, "F8_E4M3 [out, in], the weight of a quantized layer")),
    }
}

/// One of the names that scales have in this method.
fn find_one(tensors: &Tensors, names: &[&str], layer: &str) -> Result<Option<Id>, CheckpointError> {
    let mut found = names.iter().filter_map(|name| tensors.find(&key(layer, name)));
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            let other = text::name(&tensors.info(first).name);
            let found = format!("it beside {other}");
            Err(tensors.error(second, found, "one of them: which one is meant, nothing says", ""))
        }
        (first, _) => Ok(first),
    }
}

/// Names that scales of weights have in forms that are not read, and what to do.
const OTHERS: [(&str, &str); 2] = [
    ("scale", "which is the form of DeepSeek's own programs: convert it for transformers"),
    ("qscale_weight", "which is Mistral's own form: fetch model.safetensors beside it"),
];

fn no_scale(
    tensors: &Tensors,
    rules: &Rules,
    layer: &str,
    weight: Id,
    expected: String,
) -> CheckpointError {
    let name = key(layer, rules.weight_scale[0]);
    let found = format!("no such tensor, beside {} of F8_E4M3", text::name(&key(layer, "weight")));
    let otherwise = format!("which is not {}'s name for it: is quant_method right?", rules.method);
    let others = SCALES.iter().map(|name| (*name, &otherwise[..])).chain(OTHERS);
    let mut others = others.map(|(name, advice)| (key(layer, name), advice));
    let advice = match others.find(|(name, _)| tensors.find(name).is_some()) {
        Some((other, advice)) => format!("there is {}, {advice}", text::name(&other)),
        None => {
            "the weight means nothing without it; open the folder, not one of several files".into()
        }
    };
    CheckpointError::tensor(tensors.path(weight), &name, found, expected, &advice)
}

fn find_input_scale(
    tensors: &Tensors,
    rules: &Rules,
    layer: &str,
    weight: Id,
) -> Result<Id, CheckpointError> {
    let expected = "F32, BF16 or F16 of one element, the static scale of activations";
    let Some(scale) = find_one(tensors, rules.input_scale, layer)? else {
        let (path, name) = (tensors.path(weight), key(layer, rules.input_scale[0]));
        let found = "no such tensor, while the configuration declares static activations";
        return Err(CheckpointError::tensor(path, &name, found, expected, ""));
    };
    let info = tensors.info(scale);
    match is_float(info.dtype) && matches!(info.shape[..], [] | [1]) {
        true => Ok(scale),
        false => Err(unexpected(tensors, scale, expected)),
    }
}

/// The shape is held against that of the configuration's blocks, never the other way round: 192 rows in two blocks are 128 and 64, not twice 96.
fn check_scale(
    tensors: &Tensors,
    scale: Id,
    scaling: WeightScaling,
    shape: [usize; 2],
) -> Result<(), CheckpointError> {
    let info = tensors.info(scale);
    let dtype = match scaling {
        WeightScaling::Mx => matches!(info.dtype, Dtype::U8 | Dtype::F8_E8M0),
        _ => is_float(info.dtype) || info.dtype == Dtype::F8_E8M0,
    };
    let [rows, columns] = scaling.grid(shape);
    let sizes = &info.shape[..];
    let fits = match scaling {
        WeightScaling::PerTensor => matches!(sizes, [] | [1] | [1, 1]),
        WeightScaling::PerChannel => sizes == [rows, 1] || sizes == [rows],
        // ModelOpt keeps a dimension for the elements of a block.
        _ => sizes == [rows, columns] || sizes == [rows, 1, columns, 1],
    };
    match dtype && fits {
        true => Ok(()),
        false => Err(unexpected(tensors, scale, expected_scale(scaling, shape))),
    }
}

fn expected_scale(scaling: WeightScaling, shape: [usize; 2]) -> String {
    let [rows, columns] = scaling.grid(shape);
    let (dtypes, sizes) = match scaling {
        WeightScaling::Mx => ("U8 or F8_E8M0", format!("[{rows}, {columns}]")),
        WeightScaling::PerTensor => ("F32, BF16, F16 or F8_E8M0", "[] or [1]".into()),
        _ => ("F32, BF16, F16 or F8_E8M0", format!("[{rows}, {columns}]")),
    };
    format!("{dtypes} {sizes}, scales {scaling} of a weight {shape:?}")
}

/// Whether it is a weight of experts, stacked: it is read plain.
fn are_experts(info: &TensorInfo) -> bool {
    info.dtype.is_fp8() && info.shape.len() == 3
}

/// Of tensors that belong to no layer although their names or types say so: an error for a scale without a weight; warnings for the rest.
fn check_plain(
    tensors: &Tensors,
    plain: &[Id],
    warnings: &mut Vec<String>,
) -> Result<(), CheckpointError> {
    let name = |id: &Id| &tensors.info(*id).name[..];
    for id in plain {
        let mut layers = SCALES.iter().filter_map(|scale| layer_of(name(id), scale));
        if let Some(layer) = layers.next() {
            let weight = key(layer, "weight");
            if tensors.find(&weight).is_some_and(|weight| are_experts(tensors.info(weight))) {
                continue;
            }
            let found = format!("it without {}", text::name(&weight));
            let expected = "a weight of F8_E4M3 for each scale";
            let advice = "open the folder, not one of several files";
            return Err(tensors.error(*id, found, expected, advice));
        }
    }
    let unused = |fields: &[&str]| {
        let ends = |id: &&Id| fields.iter().any(|field| layer_of(name(id), field).is_some());
        plain.iter().filter(ends).map(name).collect::<Vec<_>>()
    };
    let points = unused(&["weight_zero_point", "input_zero_point"]);
    if !points.is_empty() {
        let names = text::some_names(points);
        warnings.push(format!("zero points, which symmetric FP8 has not, are not read: {names}"));
    }
    let scales = unused(&["input_scale", "activation_scale"]);
    if !scales.is_empty() {
        let names = text::some_names(scales);
        warnings.push(format!(
            "scales of activations that the configuration does not declare to be static are not used: {names}"
        ));
    }
    let codes = plain.iter().filter(|id| tensors.info(**id).dtype.is_fp8()).map(name);
    let codes: Vec<_> = codes.collect();
    if !codes.is_empty() {
        let names = text::some_names(codes);
        warnings.push(format!(
            "FP8 tensors that are no weight of a linear layer are read as bytes alone: {names}"
        ));
    }
    Ok(())
}

/// What scales of weights are called in any method.
const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];

/// The name of a layer's tensor. A layer without a name is one whose tensors have no other.
fn key(layer: &str, field: &str) -> String {
    match layer {
        "" => field.to_owned(),
        layer => format!("{layer}.{field}"),
    }
}

/// The name of the layer, if a tensor's name ends with this field.
fn layer_of<'a>(name: &'a str, field: &str) -> Option<&'a str> {
    match name.strip_suffix(field)? {
        "" => Some(""),
        layer => layer.strip_suffix('.'),
    }
}
