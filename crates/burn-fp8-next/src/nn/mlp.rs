//! The feed-forward part of a transformer.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use burn_fp8_core::MlpActivation;

use super::Fp8Linear;
use crate::ops::{gelu, silu};

/// How to make an [`Fp8Mlp`].
#[derive(Config, Debug)]
pub struct Fp8MlpConfig {
    /// The size of input and output features.
    pub d_model: usize,
    /// The size of what lies between.
    pub d_hidden: usize,
    /// Whether another layer of the input, after the activation, multiplies the hidden features.
    #[config(default = false)]
    pub gated: bool,
    /// The activation.
    #[config(default = "MlpActivation::Gelu")]
    pub activation: MlpActivation,
    /// Whether the layers have a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How the layers are initialized: that of `LinearConfig`.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / f64::sqrt(3.0), fan_out_only: false}"
    )]
    pub initializer: Initializer,
}

impl Fp8MlpConfig {
    /// SwiGLU: SiLU, gated, without a bias (Shazeer, "GLU variants improve transformer", 2020).
    pub fn swiglu(d_model: usize, d_hidden: usize) -> Self {
        let silu = Self::new(d_model, d_hidden).with_activation(MlpActivation::Silu);
        silu.with_gated(true).with_bias(false)
    }

    /// New layers.
    pub fn init(&self, device: &Device) -> Fp8Mlp {
        let linear = |inputs: usize, outputs: usize| -> Fp8Linear {
            LinearConfig::new(inputs, outputs)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(device)
                .into()
        };
        let (outer, hidden) = (self.d_model, self.d_hidden);
        Fp8Mlp {
            gate: self.gated.then(|| linear(outer, hidden)),
            up: linear(outer, hidden),
            down: linear(hidden, outer),
            activation: self.activation,
        }
    }
}

/// The feed-forward part of a transformer: `down(act(up(x)))`, or gated `down(act(gate(x)) · up(x))`, with the activation as one operation.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_fp8_next::nn::Fp8MlpConfig;
///
/// let device = Device::flex().autodiff();
/// let mlp = Fp8MlpConfig::swiglu(64, 172).init(&device);
/// let x = Tensor::<3>::random([2, 10, 64], Distribution::Default, &device);
/// assert_eq!(mlp.forward(x).dims(), [2, 10, 64]);
/// ```
#[derive(Module, Debug)]
pub struct Fp8Mlp {
    /// From input features to factors of the hidden ones, where it is gated.
    pub gate: Option<Fp8Linear>,
    /// From input to hidden features.
    pub up: Fp8Linear,
    /// From hidden to output features.
    pub down: Fp8Linear,
    /// The activation.
    #[module(skip)]
    pub activation: MlpActivation,
}

impl Fp8Mlp {
    /// From `[…, d_model]` to the same shape.
    ///
    /// # Panics
    /// Where the input does not fit, and on devices of backends whose feature is off.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let activate = match self.activation {
            MlpActivation::Gelu => gelu,
            MlpActivation::Silu => silu,
        };
        let hidden = match &self.gate {
            Some(gate) => activate(gate.forward(x.clone())) * self.up.forward(x),
            None => activate(self.up.forward(x)),
        };
        self.down.forward(hidden)
    }
}
