//! Whether the values of a layer can be those of a layer.

use crate::error::CheckpointError;
use crate::files::{Id, Tensors};
use crate::numbers::{first_nan, is_scale};

/// Checks scales, of which the first has this place in the tensor.
pub(crate) fn check_scales(
    tensors: &Tensors,
    id: Id,
    first: u64,
    scales: &[f32],
) -> Result<(), CheckpointError> {
    match scales.iter().position(|scale| !is_scale(*scale)) {
        None => Ok(()),
        Some(place) => {
            let found = format!("{}{}", scales[place], at(tensors, id, first + place as u64));
            let advice = "the layer was quantized badly: fetch the file again, or quantize anew";
            Err(tensors.error(id, found, "positive, finite scales", advice))
        }
    }
}

/// Checks codes of a weight, of which the first has this place in the tensor.
///
/// NaN is an error, not a warning: one such code makes an output NaN for every input, and a checkpoint that was written whole has none, as quantization
/// saturates. [`Checkpoint::tensor`](crate::Checkpoint::tensor) still gives the codes as they are.
pub(crate) fn check_codes(
    tensors: &Tensors,
    id: Id,
    first: u64,
    codes: &[u8],
) -> Result<(), CheckpointError> {
    match first_nan(codes) {
        None => Ok(()),
        Some(place) => {
            let at = at(tensors, id, first + place as u64);
            let found = format!("the code 0x{:02X}, NaN{at}", codes[place]);
            let advice = "the file is damaged, or the layer was quantized badly: fetch it again";
            Err(tensors.error(id, found, "E4M3 codes of numbers", advice))
        }
    }
}

/// Where an element is, by its place row by row.
fn at(tensors: &Tensors, id: Id, place: u64) -> String {
    match tensors.entry(id).shape[..] {
        [] => String::new(),
        [.., columns] if tensors.entry(id).shape.len() == 2 => {
            format!(" at [{}, {}]", place / columns as u64, place % columns as u64)
        }
        _ => format!(" at [{place}]"),
    }
}
