//! Frozen layers as they are published.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8_core::Fp8Format;

use super::weight::Weight;
use super::{ActivationScale, FrozenLinear};
use crate::checkpoint::{Activations, Checkpoint, CheckpointError, QuantizedLinear, Scales};
use crate::engine::check_scale;
use crate::engine::tensor::read;
use crate::host::primitive;
use crate::tensor::Fp8Tensor;

impl<B: Backend> FrozenLinear<B> {
    /// Reads the layer of this name, without `.weight`, and puts it on a device: codes and scales as they lie in the file, inputs quantized as it declares.
    ///
    /// # Errors
    /// As [`Checkpoint::linear`]: where there is no such layer, where a scale or a code is none, and where the file cannot be read.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        name: &str,
        device: &B::Device,
    ) -> Result<Self, CheckpointError> {
        Ok(Self::from_published(checkpoint.linear(name)?, device))
    }

    /// Puts a layer of a checkpoint on a device.
    pub fn from_published(layer: QuantizedLinear, device: &B::Device) -> Self {
        let ([d_output, d_input], format) = (layer.shape(), Fp8Format::E4M3);
        let f32s = |values, shape| TensorData::new::<f32, _>(values, shape);
        let options = (device, DType::F32);
        let bias = layer.bias();
        let bias = bias.map(|bias| Tensor::from_data(f32s(bias.to_vec(), vec![d_output]), options));
        let activation = ActivationScale::from(layer.activations());
        let scales = layer.scales().clone();
        let codes = transpose(&layer.into_codes(), [d_output, d_input]);
        let shape = [d_input, d_output];
        let weight = match scales.values() {
            [scale] if check_scale("weight_scale", *scale).is_ok() => {
                Fp8Tensor::from_bytes(codes, shape, format, *scale, device)
            }
            values => {
                let ([down, across], [outputs, inputs]) = (scales.grid(), scales.block());
                let grid = (0..down * across).map(|at| values[at % down * across + at / down]);
                let grid = f32s(grid.collect(), vec![across, down]);
                // A matrix unit wants the blocks of both operands of one size.
                let in_blocks =
                    matches!(activation, ActivationScale::Blocks { .. } | ActivationScale::Mx);
                let inputs = if across == 1 && !in_blocks { usize::MAX } else { inputs };
                let block = [inputs, outputs];
                let grid = Tensor::from_data(grid, options);
                Fp8Tensor::from_blocks(codes, shape, format, grid, block, device)
            }
        };
        let weight = weight.expect("a layer of a checkpoint is valid").with_kind_of_scales();
        Self { weight: Weight::new(weight), bias, activation }
    }

    /// The layer as checkpoints hold it, `[d_output, d_input]`, for [`Export`](crate::checkpoint::Export). Reads codes, scales and bias from the device.
    ///
    /// [`ActivationScale::Current`] becomes [`Activations::PerToken`], what loaders call dynamic: a scale for each row of the input instead of one for all.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a code of the weight is NaN: no loader could use it.
    pub fn to_published(&self) -> Result<QuantizedLinear, CheckpointError> {
        let ([d_input, d_output], weight) = (self.dims(), self.tensor());
        let codes = transpose(&weight.to_bytes(), [d_input, d_output]);
        let shape = [d_output, d_input];
        let block = weight.block().map_or(shape, |[inputs, outputs]| [outputs, inputs]);
        let [across, down] = weight.scales().dims();
        let values = read::<B>(primitive(weight.scales()));
        let values = (0..down * across).map(|at| values[at % across * down + at / across]);
        let scales = Scales::new(shape, block, values.collect())?;
        let bias = self.bias().map(|bias| bias.to_data().to_vec().expect("a bias is f32"));
        let activations = match self.activation() {
            ActivationScale::Unquantized => Activations::None,
            ActivationScale::Static(scale) => Activations::Static(scale),
            ActivationScale::Current | ActivationScale::PerToken => Activations::PerToken,
            ActivationScale::Blocks { size, power_of_two } => {
                Activations::Blocks { size, power_of_two }
            }
            ActivationScale::Mx => Activations::Mx,
        };
        QuantizedLinear::new(shape, codes, scales, bias, activations)
    }
}

/// The transpose of a matrix of bytes, in squares that fit into the first-level cache.
fn transpose(codes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    const SIDE: usize = 64;
    let mut transposed = vec![0; codes.len()];
    for first in (0..rows).step_by(SIDE) {
        for from in (0..columns).step_by(SIDE) {
            for row in first..rows.min(first + SIDE) {
                for column in from..columns.min(from + SIDE) {
                    transposed[column * rows + row] = codes[row * columns + column];
                }
            }
        }
    }
    transposed
}
