//! Tensors that belong to no layer although their names or types say so.

use super::names::{SCALES, key, layer_of};
use crate::error::CheckpointError;
use crate::files::{Id, Tensors};
use crate::text;

/// An error for a scale without a weight; warnings for the rest.
pub(super) fn check(
    tensors: &Tensors,
    plain: &[Id],
    warnings: &mut Vec<String>,
) -> Result<(), CheckpointError> {
    let name = |id: &Id| &tensors.entry(*id).name[..];
    for id in plain {
        let mut layers = SCALES.iter().filter_map(|scale| layer_of(name(id), scale));
        if let Some(layer) = layers.next() {
            let weight = text::name(&key(layer, "weight"));
            let found = format!("it without {weight}");
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
    let codes = plain.iter().filter(|id| tensors.entry(**id).dtype.is_fp8()).map(name);
    let codes: Vec<_> = codes.collect();
    if !codes.is_empty() {
        let names = text::some_names(codes);
        warnings.push(format!(
            "FP8 tensors that are no weight of a linear layer are read as bytes alone: {names}"
        ));
    }
    Ok(())
}
