//! Layers for inference, with weights held in FP8.
//!
//! ```
//! use burn::backend::Flex;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::nn::{ActivationScale, FrozenLinear};
//!
//! let device = Default::default();
//! let weight = Tensor::<Flex, 2>::random([64, 32], Distribution::Default, &device);
//! let x = Tensor::<Flex, 2>::random([1, 64], Distribution::Default, &device);
//!
//! let activation = ActivationScale::from_samples([x.clone()])?;
//! let layer = FrozenLinear::from_weight(weight, None, activation)?;
//! assert_eq!(layer.bytes(), 64 * 32);
//! assert_eq!(layer.forward(x).dims(), [1, 32]);
//! # Ok::<(), burn_fp8::Fp8Error>(())
//! ```
//!
//! The layers of FP8 models as they are published keep the codes and scales of their files. The crate
//! [`burn_fp8_checkpoint`](crate::checkpoint) reads these, and says which formats there are.
//!
//! ```no_run
//! use burn::backend::Flex;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::checkpoint::Checkpoint;
//! use burn_fp8::nn::FrozenLinear;
//!
//! let checkpoint = Checkpoint::open("Qwen3-8B-FP8")?;
//! println!("{}", checkpoint.format());
//!
//! let device = Default::default();
//! let name = "model.layers.0.mlp.up_proj";
//! let layer = FrozenLinear::<Flex>::from_checkpoint(&checkpoint, name, &device)?;
//! let [d_input, d_output] = layer.dims();
//! let x = Tensor::random([1, d_input], Distribution::Default, &device);
//! assert_eq!(layer.forward(x).dims(), [1, d_output]);
//! # Ok::<(), burn_fp8::checkpoint::CheckpointError>(())
//! ```

mod check;
mod module;
#[cfg(feature = "flex")]
mod on_host;
mod published;
mod record;
mod weight;

use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor, TensorMetadata, TensorPrimitive};
use burn_fp8_core::{Fp8Format, ProductKind, Recipe};

use check::read_bias;
#[cfg(feature = "flex")]
pub use on_host::HostLinear;
pub use record::FrozenLinearRecord;

use crate::Fp8Error;
use crate::backend::Fp8Matmul;
use crate::engine::{Request, ScaleRule, Scales, Wanted};
use crate::host::{constant, primitive};
pub use crate::product::ActivationScale;
use crate::product::frozen_layer::{check_finite, check_shape, forward};
use crate::tensor::Fp8Tensor;
use weight::Weight;

/// A linear layer for inference: the weight in E4M3, one byte an element, with one scale, a scale for each output, or one for each block.
///
/// It is made [from a weight](Self::from_weight), [from codes and scales](Self::from_tensor), or from a layer
/// [of a checkpoint](Self::from_checkpoint).
///
/// `forward` quantizes its input to E4M3 as its [`ActivationScale`] says, multiplies it with the codes of the weight, applies both scales and adds the
/// bias: with one scale each what a linear layer under [`Fp8Backend`](crate::Fp8Backend) with current scaling gives, without the work of quantizing the
/// weight again each time. It appears once in a [`trace`](crate::trace), is not subject to the filter, and runs in high precision
/// inside [`high_precision`](crate::high_precision): the input as it is, times the dequantized weight.
///
/// The gradient of an output reaches the input, straight through its quantization: `grad_x = grad · weightᵀ`, in f32, from the codes where they lie. So a
/// model may train what lies before a frozen layer, or beside it as LoRA does. The weight itself has no gradient.
///
/// Where the device has FP8 tensor cores it is one call of cuBLASLt. The codes of the weight stay in the layout that the last product took: the
/// first native one moves them once.
///
/// It has no trainable parameters: optimizers and mappers leave it as it is, visitors see a copy of the scales of the weight. (So
/// Burn counts the scales in an `Option<FrozenLinear<B>>`, though `num_params` of the layer counts weight and bias.) Its record
/// holds the codes as bytes, whatever the precision settings of the recorder.
#[derive(Clone, Debug)]
pub struct FrozenLinear<B: Backend> {
    /// `[d_input, d_output]`.
    weight: Weight<B>,
    /// `[d_output]`, f32.
    bias: Option<Tensor<B, 1>>,
    activation: ActivationScale,
}

impl<B: Fp8Matmul> FrozenLinear<B> {
    /// Quantizes a weight `[d_input, d_output]` with current scaling; `bias` is `[d_output]`. Gradients end here.
    ///
    /// Reads weight and bias from the device: the codes are put there again as small as the device can hold them.
    ///
    /// # Errors
    /// As [`from_tensor`](Self::from_tensor).
    pub fn from_weight(
        weight: Tensor<B, 2>,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let (shape, device) = (weight.dims(), weight.device());
        check_shape(shape).map_err(invalid)?;
        let format = Fp8Format::E4M3;
        let rule = ScaleRule::Current(Recipe::current());
        let weight = primitive(constant(weight).cast(FloatDType::F32));
        let matrix = B::fp8_quantize(weight, Request::whole(format, rule, Wanted::Codes));
        let weight = Fp8Tensor::<B, 2>::new(matrix);
        let (scale, bytes) = (weight.read_scale(), weight.to_bytes());
        check_finite(shape, &bytes, read_bias(&bias).as_deref()).map_err(invalid)?;
        let weight = Fp8Tensor::from_bytes(bytes, shape, format, scale, &device)?;
        Self::checked(weight, bias, activation)
    }

    /// Applies the layer to `[…, d_input]`, f32, f16 or bf16; the output `[…, d_output]` has the type of `x`. Tensors of other
    /// types are multiplied in high precision.
    ///
    /// # Panics
    /// Where the last dimension of `x` is not `d_input`; where [`Execution::Native`](crate::Execution::Native) is asked for and not available.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let laid_out = |of_transpose| self.weight.laid_out(of_transpose);
        let weight = self.weight.get().matrix().clone();
        let bias = self.bias.clone().map(primitive);
        let kind = ProductKind::Linear;
        let output = forward::<B>(kind, primitive(x), weight, bias, self.activation, laid_out);
        Tensor::from_primitive(TensorPrimitive::Float(output))
    }

    /// The weight `[d_input, d_output]` that the codes and the scales stand for, in f32.
    pub fn weight(&self) -> Tensor<B, 2> {
        self.weight.get().dequantize()
    }
}

impl<B: Backend> FrozenLinear<B> {
    /// A layer of a weight `[d_input, d_output]` in E4M3 and a bias `[d_output]`, which is held in f32.
    ///
    /// Reads codes, scales and bias from the device to check them.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the weight is not E4M3 or empty, the bias has another length than the weight has columns, the scale of the weight or of
    /// the inputs is not a finite number of at least 2^-126, or all elements of the weight, or of the bias, are NaN or infinite. (One that is makes its
    /// outputs NaN: that is seen, and allowed.)
    pub fn from_tensor(
        weight: Fp8Tensor<B, 2>,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let (shape, codes) = (weight.dims(), weight.to_bytes());
        let layer = Self::checked(weight, bias, activation)?;
        check_finite(shape, &codes, read_bias(&layer.bias).as_deref()).map_err(invalid)?;
        Ok(layer)
    }

    /// The same, of a weight and a bias that have finite elements.
    fn checked(
        weight: Fp8Tensor<B, 2>,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        if weight.format() != Fp8Format::E4M3 {
            return Err(invalid(format!("the weight is {}; it must be E4M3", weight.format())));
        }
        let scale = match &weight.matrix().scales {
            Scales::One(scale) => scale.check_scale("weight_scale"),
            Scales::Grid { .. } => Ok(()),
        };
        check_shape(weight.dims()).and(scale).and_then(|()| activation.check()).map_err(invalid)?;
        let [_, d_output] = weight.dims();
        if let Some(bias) = &bias
            && bias.dims() != [d_output]
        {
            let [len] = bias.dims();
            return Err(invalid(format!("the bias has {len} elements for {d_output} outputs")));
        }
        let bias = bias.map(|bias| constant(bias).cast(FloatDType::F32));
        let weight = Weight::new(weight.with_kind_of_scales());
        Ok(Self { weight, bias, activation })
    }

    /// The weight `[d_input, d_output]` in FP8, its codes row by row: a copy where the layer holds them in another layout.
    pub fn tensor(&self) -> Fp8Tensor<B, 2> {
        let weight = self.weight.get();
        match weight.is_transposed() {
            true => weight.laid_out(false),
            false => weight,
        }
    }

    /// The bias `[d_output]`, in f32.
    pub fn bias(&self) -> Option<&Tensor<B, 1>> {
        self.bias.as_ref()
    }

    /// How inputs are scaled.
    pub fn activation(&self) -> ActivationScale {
        self.activation
    }

    /// The same layer with another way of scaling its inputs.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where a static scale is not a finite number of at least 2^-126, or blocks have no elements.
    pub fn with_activation(self, activation: ActivationScale) -> Result<Self, Fp8Error> {
        activation.check().map_err(invalid)?;
        Ok(Self { activation, ..self })
    }

    /// The bytes that the layer holds on its device: the codes of the weight, the scales where it has several, and the bias.
    pub fn bytes(&self) -> usize {
        let bias = self.bias.as_ref();
        let bias = bias.map_or(0, |bias| bias.shape().num_elements() * bias.dtype().size());
        let weight = self.weight.get();
        let scales = match &weight.matrix().scales {
            Scales::One(_) => 0,
            Scales::Grid { scales, .. } => scales.shape().num_elements() * size_of::<f32>(),
        };
        weight.bytes_held() + scales + bias
    }

    /// Where its weight is.
    pub fn device(&self) -> B::Device {
        self.weight.get().device()
    }

    /// `[d_input, d_output]`. Files store the transpose.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "frozen linear layer", reason }
}
