//! One layer: its tensors, found and checked.

use super::names::{SCALES, key};
use crate::config::Rules;
use crate::error::CheckpointError;
use crate::files::{Id, Tensors};
use crate::layer::LayerInfo;
use crate::numbers::is_float;
use crate::safetensors::Dtype;
use crate::scheme::{ActivationScaling, Scheme, WeightScaling};
use crate::text;

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
pub(super) fn plan(
    tensors: &Tensors,
    rules: &Rules,
    layer: &str,
    weight: Id,
) -> Result<PlannedLayer, CheckpointError> {
    let shape = check_weight(tensors, weight)?;
    let Some(Scheme { weight: scaling, activations }) = rules.scheme(layer) else {
        let found = "F8_E4M3, and no group of the configuration for it";
        let expected =
            "the name of the layer, an expression for it, or `Linear` among the targets of a group";
        return Err(tensors.error(weight, found, expected, "config.json may be another model's"));
    };
    let scale = find_scale(tensors, rules, layer, weight, scaling, shape)?;
    check_scale(tensors, scale, scaling, shape)?;
    let input_scale = match activations {
        ActivationScaling::Static => Some(find_input_scale(tensors, rules, layer, weight)?),
        _ => None,
    };
    let bias = tensors.find(&key(layer, "bias"));
    if let Some(bias) = bias {
        let entry = tensors.entry(bias);
        if !is_float(entry.dtype) || entry.shape != [shape[0]] {
            let expected = format!("F32, BF16 or F16 [{}], one for each output", shape[0]);
            return Err(unexpected(tensors, bias, expected));
        }
    }
    let all = [Some(weight), Some(scale), input_scale, bias];
    let info = LayerInfo {
        name: layer.to_owned(),
        shape,
        weight: scaling,
        scale_dtype: tensors.entry(scale).dtype,
        activations,
        bias: bias.is_some(),
        bytes: all.into_iter().flatten().map(|id| tensors.entry(id).bytes).sum(),
    };
    Ok(PlannedLayer { info, weight, scale, input_scale, bias })
}

fn unexpected(tensors: &Tensors, id: Id, expected: impl Into<String>) -> CheckpointError {
    let entry = tensors.entry(id);
    tensors.error(id, format!("{} {:?}", entry.dtype, entry.shape), expected, "")
}

fn check_weight(tensors: &Tensors, weight: Id) -> Result<[usize; 2], CheckpointError> {
    let entry = tensors.entry(weight);
    match entry.shape[..] {
        [out, input] if entry.dtype == Dtype::F8_E4M3 && out > 0 && input > 0 => Ok([out, input]),
        _ => Err(unexpected(tensors, weight, "F8_E4M3 [out, in], the weight of a quantized layer")),
    }
}

/// One of the names that scales have in this method.
fn find_one(tensors: &Tensors, names: &[&str], layer: &str) -> Result<Option<Id>, CheckpointError> {
    let mut found = names.iter().filter_map(|name| tensors.find(&key(layer, name)));
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            let other = text::name(&tensors.entry(first).name);
            let found = format!("it beside {other}");
            Err(tensors.error(second, found, "one of them: which one is meant, nothing says", ""))
        }
        (first, _) => Ok(first),
    }
}

fn find_scale(
    tensors: &Tensors,
    rules: &Rules,
    layer: &str,
    weight: Id,
    scaling: WeightScaling,
    shape: [usize; 2],
) -> Result<Id, CheckpointError> {
    if let Some(scale) = find_one(tensors, rules.weight_scale, layer)? {
        return Ok(scale);
    }
    let name = key(layer, rules.weight_scale[0]);
    let found = format!("no such tensor, beside {} of F8_E4M3", text::name(&key(layer, "weight")));
    let expected = expected_scale(scaling, shape);
    let other = SCALES.iter().find(|name| tensors.find(&key(layer, name)).is_some());
    let advice = match other {
        Some(other) => format!(
            "there is {}, which is not {}'s name for it: is quant_method right?",
            text::name(&key(layer, other)),
            rules.method
        ),
        None => {
            "the weight means nothing without it; open the folder, not one of several files".into()
        }
    };
    Err(CheckpointError::tensor(tensors.path(weight), &name, found, expected, &advice))
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
    let entry = tensors.entry(scale);
    match is_float(entry.dtype) && matches!(entry.shape[..], [] | [1]) {
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
    let entry = tensors.entry(scale);
    let dtype = match scaling {
        WeightScaling::Mx => matches!(entry.dtype, Dtype::U8 | Dtype::F8_E8M0),
        _ => is_float(entry.dtype) || entry.dtype == Dtype::F8_E8M0,
    };
    let [rows, columns] = scaling.grid(shape);
    let sizes = &entry.shape[..];
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
