//! A published layer.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::held::{Held, f32s};
use crate::backend::Fp8Matmul;
use crate::checkpoint::{Activations, Checkpoint, CheckpointError, QuantizedLinear};

/// A linear layer of a published FP8 model, for inference: the weight in E4M3, one byte an element, with the scales of its file, and activations
/// quantized as the file declares.
///
/// Where activations are not quantized, they are multiplied as they are, in f32, with the dequantized weight. A layer with one scale for the weight and one for
/// activations is a [`FrozenLinear`](super::super::FrozenLinear) inside, and runs where that runs.
///
/// As a module it has no parameters and an empty record: it is loaded from its checkpoint again.
#[derive(Clone, Debug)]
pub struct CheckpointLinear<B: Backend> {
    pub(super) weight: Held<B>,
    /// `[d_output]`, f32.
    pub(super) bias: Option<Tensor<B, 1>>,
    pub(super) activations: Activations,
    /// `[d_input, d_output]`.
    pub(super) dims: [usize; 2],
}

impl<B: Backend> CheckpointLinear<B> {
    /// Reads the layer of this name, without `.weight`, and puts it on a device.
    ///
    /// # Errors
    /// As [`Checkpoint::linear`]: where there is no such layer, where a scale or a code is none, and where the file cannot be read.
    pub fn load(
        checkpoint: &Checkpoint,
        name: &str,
        device: &B::Device,
    ) -> Result<Self, CheckpointError> {
        Ok(Self::new(checkpoint.linear(name)?, device))
    }

    /// Puts a layer on a device.
    pub fn new(layer: QuantizedLinear, device: &B::Device) -> Self {
        let [d_output, d_input] = layer.shape();
        let bias = layer.bias().map(|bias| f32s(bias.to_vec(), [d_output], device));
        let activations = layer.activations();
        let weight = Held::new(layer, &bias, device);
        Self { weight, bias, activations, dims: [d_input, d_output] }
    }

    /// `[d_input, d_output]`. Files store the transpose.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// How inputs are quantized, as the file declares.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// The bias `[d_output]`, in f32.
    pub fn bias(&self) -> Option<&Tensor<B, 1>> {
        self.bias.as_ref()
    }

    /// The bytes that the layer holds on its device: codes, scales and bias.
    pub fn bytes(&self) -> usize {
        self.weight.bytes(&self.bias)
    }
}

impl<B: Fp8Matmul> CheckpointLinear<B> {
    /// The weight `[d_input, d_output]` that codes and scales stand for, in f32.
    pub fn weight(&self) -> Tensor<B, 2> {
        self.weight.dequantize()
    }
}
