//! The feed-forward part of a transformer.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8_core::MlpActivation;

use crate::Graph;
use crate::ops::{gated, gelu, silu};

/// How to make an [`FusedMlp`].
#[derive(Config, Debug)]
pub struct FusedMlpConfig {
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

impl FusedMlpConfig {
    /// SwiGLU: SiLU, gated, without a bias (Shazeer, "GLU variants improve transformer", 2020).
    pub fn swiglu(d_model: usize, d_hidden: usize) -> Self {
        let silu = Self::new(d_model, d_hidden).with_activation(MlpActivation::Silu);
        silu.with_gated(true).with_bias(false)
    }

    /// New layers.
    pub fn init<B: Backend>(&self, device: &B::Device) -> FusedMlp<B> {
        let linear = |inputs: usize, outputs: usize| {
            LinearConfig::new(inputs, outputs)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(device)
        };
        let (outer, hidden) = (self.d_model, self.d_hidden);
        FusedMlp {
            gate: self.gated.then(|| linear(outer, hidden)),
            up: linear(outer, hidden),
            down: linear(hidden, outer),
            activation: self.activation,
        }
    }
}

/// The feed-forward part of a transformer: `down(act(up(x)))`, or gated `down(act(gate(x)) · up(x))`, with the activation, and what it gates, as one operation.
///
/// The linear layers are those of `burn::nn`: in FP8 on an `Fp8Backend`, as its configuration says.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::nn::FusedMlpConfig;
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let mlp = FusedMlpConfig::swiglu(64, 172).init::<B>(&device);
/// let x = Tensor::<B, 3>::random([2, 10, 64], Distribution::Default, &device);
/// assert_eq!(mlp.forward(x).dims(), [2, 10, 64]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct FusedMlp<B: Backend> {
    /// From input features to factors of the hidden ones, where it is gated.
    pub gate: Option<Linear<B>>,
    /// From input to hidden features.
    pub up: Linear<B>,
    /// From hidden to output features.
    pub down: Linear<B>,
    /// The activation.
    #[module(skip)]
    pub activation: MlpActivation,
}

impl<B: Graph> FusedMlp<B> {
    /// From `[…, d_model]` to the same shape.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let hidden = match (&self.gate, self.activation) {
            (Some(gate), activation) => {
                gated(activation, gate.forward(x.clone()), self.up.forward(x))
            }
            (None, MlpActivation::Gelu) => gelu(self.up.forward(x)),
            (None, MlpActivation::Silu) => silu(self.up.forward(x)),
        };
        self.down.forward(hidden)
    }
}

impl<B: Backend> ModuleDisplay for FusedMlp<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model, d_hidden] = self.up.weight.shape().dims();
        content
            .add("d_model", &d_model)
            .add("d_hidden", &d_hidden)
            .add("gated", &self.gate.is_some())
            .add_debug_attribute("activation", &self.activation)
            .optional()
    }
}
