//! Frozen layers as they are published.

use burn::module::{Param, ParamId};
use burn::nn::Linear;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8_core::Fp8Format;

use super::weight::Weight;
use super::{ActivationScale, FrozenLinear};
use crate::Fp8Error;
use crate::backend::{Fp8Backend, Fp8Matmul};
use crate::checkpoint::{Checkpoint, CheckpointError, QuantizedLinear};
use crate::engine::Fp8Engine;
use crate::engine::tensor::read;
use crate::host::primitive;
use crate::product::frozen_layer::{HostWeight, takes_columns};
use crate::tensor::Fp8Tensor;

impl<B: Fp8Engine> FrozenLinear<B> {
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
        let options = (device, DType::F32);
        let bias = layer.bias().map(|bias| TensorData::new(bias.to_vec(), [bias.len()]));
        let activation = ActivationScale::from(layer.activations());
        let (format, weight) = (Fp8Format::E4M3, HostWeight::of(layer));
        let as_published = takes_columns::<B>(device, activation);
        let weight = if as_published { weight } else { weight.transpose() };
        let HostWeight { shape, codes, scales, grid, block } = weight;
        let weight = match block {
            None => Fp8Tensor::from_bytes(codes, shape, format, scales[0], device),
            Some(block) => {
                let scales = Tensor::from_data(TensorData::new(scales, grid), options);
                Fp8Tensor::from_blocks(codes, shape, format, scales, block, device)
            }
        };
        let weight = weight.expect("a layer of a checkpoint is valid").with_kind_of_scales();
        let weight = if as_published { weight.transpose() } else { weight };
        let bias = bias.map(|bias| Tensor::from_data(bias, options));
        Self { weight: Weight::new(weight), bias, activation }
    }

    /// The layer as checkpoints hold it, `[d_output, d_input]`, for [`Export`](crate::checkpoint::Export). Reads codes, scales and bias from the device.
    ///
    /// [`ActivationScale::Current`] becomes [`Activations::PerToken`](crate::checkpoint::Activations::PerToken), what loaders call dynamic: a scale for each row of the input instead of one for all.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a code of the weight is NaN: no loader could use it.
    pub fn to_published(&self) -> Result<QuantizedLinear, CheckpointError> {
        let weight = self.tensor();
        let bias = self.bias().map(|bias| bias.to_data().to_vec().expect("a bias is f32"));
        let weight = HostWeight {
            shape: self.dims(),
            codes: weight.to_bytes(),
            scales: read::<B>(primitive(weight.scales())),
            grid: weight.scales().dims(),
            block: weight.block(),
        };
        weight.transpose().publish(bias, self.activation())
    }
}

impl<B: Fp8Matmul> FrozenLinear<Fp8Backend<B>> {
    /// The layer as Burn's own, its weight one of Burn's quantized tensors: models keep their type, and their records hold the codes. No code moves. Whether
    /// its inputs are quantized says the configuration then, as for other products.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use burn::backend::Flex;
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::Tensor;
    /// use burn_fp8::Fp8Backend;
    /// use burn_fp8::nn::{ActivationScale, FrozenLinear};
    ///
    /// type B = Fp8Backend<Flex>;
    /// let device = Default::default();
    /// let linear = LinearConfig::new(64, 32).init::<B>(&device);
    /// let bias = linear.bias.as_ref().map(|bias| bias.val());
    /// let frozen = FrozenLinear::from_weight(linear.weight.val(), bias, ActivationScale::Current)?;
    ///
    /// let linear = frozen.into_quantized()?; // of a checkpoint, too: FrozenLinear::from_checkpoint(…)?.into_quantized()?
    /// assert_eq!(linear.forward(Tensor::<B, 2>::ones([1, 64], &device)).dims(), [1, 32]);
    /// let frozen = FrozenLinear::from_quantized(&linear, ActivationScale::Current)?;
    /// assert_eq!(frozen.dims(), [64, 32]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Fp8Tensor::into_quantized`]: where each output has a scale of its own, say.
    pub fn into_quantized(self) -> Result<Linear<Fp8Backend<B>>, Fp8Error> {
        let parameter = |bias| Param::initialized(ParamId::new(), bias);
        let bias = self.bias.map(parameter);
        let weight = Param::initialized(ParamId::new(), self.weight.get().into_quantized()?);
        Ok(Linear { weight, bias })
    }

    /// A layer of Burn whose weight is quantized to E4M3, as a frozen one. No code moves.
    ///
    /// # Errors
    /// As [`Fp8Tensor::from_quantized`] and [`from_tensor`](Self::from_tensor).
    pub fn from_quantized(
        linear: &Linear<Fp8Backend<B>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let weight = Fp8Tensor::from_quantized(linear.weight.val())?;
        // A quantizer takes the bias, too.
        let bias = linear.bias.as_ref().map(|bias| bias.val().dequantize());
        Self::from_tensor(weight, bias, activation)
    }
}
