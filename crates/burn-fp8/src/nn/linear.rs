//! A linear layer in FP8.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout, LinearRecord};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::{ActivationScale, Fp8DotGeneral, Fp8DotGeneralConfig, FrozenLinear};
use crate::Fp8Error;
use crate::backend::Fp8Matmul;
use crate::config::{Fp8Config, high_precision};

/// How to make an [`Fp8Linear`]: [`LinearConfig`] with the options of the product.
#[derive(Config, Debug)]
pub struct Fp8LinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// How weight and bias are initialized: that of [`LinearConfig`].
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / f64::sqrt(3.0), fan_out_only: false}"
    )]
    pub initializer: Initializer,
    /// The layout in which the weight is stored.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
    /// The options of the product.
    #[config(default = "Fp8DotGeneralConfig::new()")]
    pub dot: Fp8DotGeneralConfig,
}

impl Fp8LinearConfig {
    /// A new layer: weight and bias as [`LinearConfig::init`] makes them, and state that has seen nothing.
    ///
    /// # Panics
    /// As [`Fp8DotGeneralConfig::init`].
    pub fn init<B: Backend>(&self, device: &B::Device) -> Fp8Linear<B> {
        let Linear { weight, bias } = LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
            .init(device);
        Fp8Linear { weight, bias, dot: self.dot.init(device) }
    }
}

/// A linear layer in FP8 with delayed scaling, in the place of [`nn::Linear`](Linear): `y = x · weight + bias`.
///
/// Input and weight are quantized to E4M3, the output gradient to E5M2, each with a scale from the amaxes of earlier steps. The bias is
/// added outside, and the master weight stays as it is. Train it with [`Fp8Optimizer`](crate::optim::Fp8Optimizer).
///
/// # Records
/// In formats with names (`NamedMpk`, JSON) a record of [`nn::Linear`](Linear) loads into this layer, in a whole model too, and the other way
/// round; the state is then what it was. Otherwise see [`load_linear_record`](Self::load_linear_record) and the conversions.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Fp8Linear<B: Backend> {
    /// The weight `[d_input, d_output]`.
    pub weight: Param<Tensor<B, 2>>,
    /// The bias `[d_output]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The product and its state.
    pub dot: Fp8DotGeneral<B>,
}

impl<B: Fp8Matmul> Fp8Linear<B> {
    /// `input` `[…, d_input]` to `[…, d_output]`, in the type of the weight.
    ///
    /// Gradients and exceptions are those of [`Fp8DotGeneral::forward`].
    ///
    /// # Panics
    /// As [`Fp8DotGeneral::forward`].
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        let is_excepted = Fp8Config::current().filter.excepts(self.weight.id.val());
        let dot = || self.dot.forward(input, self.weight.val());
        let output = if is_excepted { high_precision(dot) } else { dot() };
        match &self.bias {
            Some(bias) => output + bias.val().unsqueeze(),
            None => output,
        }
    }
}

impl<B: Fp8Matmul> Fp8Linear<B> {
    /// The layer for inference: its weight in FP8 codes, and inputs quantized with the scale that training has come to, so that no
    /// input is measured again. Larger inputs than the history has seen saturate.
    ///
    /// On an autodiff backend, freeze `model.valid()` to drop the graph too.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the layer has seen no input, so that there is no such scale, or where what it saw was not finite: use
    /// [`freeze_with`](Self::freeze_with).
    pub fn freeze(&self) -> Result<FrozenLinear<B>, Fp8Error> {
        let history = self.dot.input.amax_history.val().into_data().convert::<f32>();
        let history = history.to_vec::<f32>().expect("f32 now");
        let problem = match history.iter().all(|amax| amax.is_finite()) {
            false => Some(
                "its input history holds values that are not finite, which keep the scale as it was",
            ),
            true if history.iter().all(|amax| *amax == 0.0) => Some("it has seen no input"),
            true => None,
        };
        if let Some(problem) = problem {
            return Err(Fp8Error::Invalid {
                what: "Fp8Linear::freeze",
                reason: format!(
                    "the layer has no input scale to keep: {problem}; use freeze_with: ActivationScale::Current, or \
                     ActivationScale::from_samples"
                ),
            });
        }
        self.freeze_with(ActivationScale::Static(self.dot.input_scale()))
    }

    /// The layer for inference, its weight in FP8 codes, with inputs scaled like this.
    ///
    /// # Errors
    /// As [`FrozenLinear::from_weight`].
    pub fn freeze_with(&self, activation: ActivationScale) -> Result<FrozenLinear<B>, Fp8Error> {
        let bias = self.bias.as_ref().map(|bias| bias.val());
        FrozenLinear::from_weight(self.weight.val(), bias, activation)
    }
}

impl<B: Backend> Fp8Linear<B> {
    /// The layer with weight and bias of a record of [`nn::Linear`](Linear); the state stays as it is.
    ///
    /// # Panics
    /// Where one has a bias and the other has none, as [`nn::Linear`](Linear) does.
    pub fn load_linear_record(self, record: LinearRecord<B>) -> Self {
        let Self { weight, bias, dot } = self;
        let Linear { weight, bias } = Linear { weight, bias }.load_record(record);
        Self { weight, bias, dot }
    }

    /// The layer with the product, and the fresh state, of this configuration.
    ///
    /// # Panics
    /// As [`Fp8DotGeneralConfig::init`].
    pub fn from_linear(linear: Linear<B>, dot: &Fp8DotGeneralConfig) -> Self {
        let Linear { weight, bias } = linear;
        let dot = dot.init(&weight.lazy_device());
        Self { weight, bias, dot }
    }
}

/// The same parameters, with their ids, and a product of the default configuration whose state has seen nothing.
impl<B: Backend> From<Linear<B>> for Fp8Linear<B> {
    fn from(linear: Linear<B>) -> Self {
        Self::from_linear(linear, &Fp8DotGeneralConfig::new())
    }
}

/// The same parameters, with their ids; the state is dropped.
impl<B: Backend> From<Fp8Linear<B>> for Linear<B> {
    fn from(layer: Fp8Linear<B>) -> Self {
        let Fp8Linear { weight, bias, dot: _ } = layer;
        Self { weight, bias }
    }
}

impl<B: Backend> ModuleDisplay for Fp8Linear<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.weight.shape().dims();
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.bias.is_some())
            .optional()
    }
}
