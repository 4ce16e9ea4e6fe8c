//! Reading all of a checkpoint, to see whether it can be.

use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::files::Id;
use crate::numbers::floats;
use crate::values;

impl Checkpoint {
    /// Reads everything once, a few megabytes at a time, and checks what [`linear`](Self::linear) checks of each layer: scales, codes, static scales of
    /// activations. Plain tensors and biases are read; their values are not judged.
    ///
    /// # Errors
    /// The first error that reading a layer or a tensor would give.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        let tensors = &self.tensors;
        let read = |id: Id| tensors.pieces(id, |_, _| Ok(()));
        let scales = |id: Id| {
            let dtype = tensors.entry(id).dtype;
            tensors.pieces(id, |first, bytes| {
                let first = first * 8 / dtype.bits();
                values::check_scales(tensors, id, first, &floats(dtype, bytes))
            })
        };
        for layer in &self.plan.layers {
            scales(layer.scale)?;
            layer.input_scale.map(scales).transpose()?;
            tensors.pieces(layer.weight, |first, codes| {
                values::check_codes(tensors, layer.weight, first, codes)
            })?;
            layer.bias.map(read).transpose()?;
        }
        self.plan.plain.iter().try_for_each(|id| read(*id))
    }
}
