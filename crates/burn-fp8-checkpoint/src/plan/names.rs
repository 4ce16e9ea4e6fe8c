//! Names of tensors and of the layers that they belong to.

/// What scales of weights are called in any method.
pub(super) const SCALES: [&str; 2] = ["weight_scale", "weight_scale_inv"];

/// The name of a layer's tensor. A layer without a name is one whose tensors have no other.
pub(super) fn key(layer: &str, field: &str) -> String {
    match layer {
        "" => field.to_owned(),
        layer => format!("{layer}.{field}"),
    }
}

/// The name of the layer, if a tensor's name ends with this field.
pub(super) fn layer_of<'a>(name: &'a str, field: &str) -> Option<&'a str> {
    match name.strip_suffix(field)? {
        "" => Some(""),
        layer => layer.strip_suffix('.'),
    }
}
