//! Adapters of low rank beside frozen layers: LoRA.
//!
//! The base stays as it is, in FP8, a quarter of the memory of f32; what is trained is small.
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::nn::{ActivationScale, FrozenLinear};
//! use burn_fp8_serve::lora::LoraConfig;
//!
//! type B = Autodiff<Flex>;
//! let device = Default::default();
//! let weight = Tensor::<B, 2>::random([64, 32], Distribution::Default, &device);
//! let base = FrozenLinear::from_weight(weight, None, ActivationScale::Unquantized)?;
//!
//! let layer = LoraConfig::new(8).init(base)?;
//! let mut optimizer = AdamWConfig::new().init();
//! let x = Tensor::<B, 2>::random([4, 64], Distribution::Default, &device);
//! let grads = GradientsParams::from_grads(layer.forward(x).sum().backward(), &layer);
//! let layer = optimizer.step(1e-3, layer, grads);
//! assert_eq!(layer.merged().dims(), [64, 32]);
//! # Ok::<(), burn_fp8::Fp8Error>(())
//! ```
//!
//! Source: E. Hu et al., "LoRA", 2021.

mod file;

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, FloatDType, Tensor};
use burn_fp8::fused::ops::dropout;
use burn_fp8::nn::FrozenLinear;
use burn_fp8::{Fp8Error, Fp8Matmul, high_precision};

pub use file::{Adapters, save_adapters};

/// How to make a [`LoraLinear`].
#[derive(Config, Debug)]
pub struct LoraConfig {
    /// The rank of what is added to the weight.
    pub rank: usize,
    /// What is added is multiplied by this over the rank.
    #[config(default = 16.0)]
    pub alpha: f64,
    /// The probability that an input of the adapter becomes 0 in training.
    #[config(default = 0.0)]
    pub dropout: f64,
}

impl LoraConfig {
    /// An adapter that adds nothing yet: `b` is zero, `a` uniform between ± 1/√d_input, as PEFT's.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the rank is 0, alpha is not a number, or the dropout not in `[0, 1)`.
    pub fn init<B: Backend>(&self, base: FrozenLinear<B>) -> Result<LoraLinear<B>, Fp8Error> {
        let ([d_input, d_output], device) = (base.dims(), base.device());
        let bound = 1.0 / (d_input as f64).sqrt();
        let a = Distribution::Uniform(-bound, bound);
        let a = Tensor::random([self.rank, d_input], a, &device);
        let b = Tensor::zeros([d_output, self.rank], &device);
        self.with(base, a, b)
    }

    /// The adapter of these matrices: `a` `[rank, d_input]`, `b` `[d_output, rank]`.
    ///
    /// # Errors
    /// As [`init`](Self::init), and where the matrices have other shapes.
    pub fn with<B: Backend>(
        &self,
        base: FrozenLinear<B>,
        a: Tensor<B, 2>,
        b: Tensor<B, 2>,
    ) -> Result<LoraLinear<B>, Fp8Error> {
        let Self { rank, alpha, dropout } = *self;
        let [d_input, d_output] = base.dims();
        if rank == 0 {
            return Err(invalid("the rank is 0; it must be at least 1".into()));
        }
        if !alpha.is_finite() || !(0.0..1.0).contains(&dropout) {
            return Err(invalid(format!(
                "alpha is {alpha} and the dropout {dropout}; alpha must be a number, the dropout at least 0 and under 1"
            )));
        }
        let expected = [[rank, d_input], [d_output, rank]];
        if [a.dims(), b.dims()] != expected {
            return Err(invalid(format!(
                "its matrices are {:?} and {:?}; this layer takes {:?} and {:?}",
                a.dims(),
                b.dims(),
                expected[0],
                expected[1]
            )));
        }
        let [a, b] = [a, b].map(|matrix| Param::from_tensor(matrix.cast(FloatDType::F32)));
        Ok(LoraLinear { base, a, b, alpha, dropout })
    }
}

/// A frozen layer with an adapter: `y = base(x) + alpha / rank · dropout(x) · aᵀ · bᵀ`.
///
/// `a` and `b` are f32, and so are their products, whatever the configuration says: they are small, and what is trained. Gradients reach them, and `x` through
/// both. The weight of the base has none.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LoraLinear<B: Backend> {
    /// The layer beside which it learns.
    pub base: FrozenLinear<B>,
    /// `[rank, d_input]`; PEFT calls it `lora_A`.
    pub a: Param<Tensor<B, 2>>,
    /// `[d_output, rank]`; PEFT calls it `lora_B`.
    pub b: Param<Tensor<B, 2>>,
    alpha: f64,
    dropout: f64,
}

impl<B: Fp8Matmul> LoraLinear<B> {
    /// `[…, d_input]` to `[…, d_output]`, of the type of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let (dtype, mut shape) = (FloatDType::from(x.dtype()), x.dims());
        let y = self.base.forward(x.clone());
        let [d_input, d_output] = self.base.dims();
        let x: Tensor<B, 2> = x.reshape([-1, d_input as i64]).cast(FloatDType::F32);
        let added = high_precision(|| {
            let x = dropout(x, self.dropout).matmul(self.a.val().transpose());
            x.matmul(self.b.val().transpose())
        });
        shape[D - 1] = d_output;
        y + (added * self.scale()).cast(dtype).reshape(shape)
    }

    /// The weight `[d_input, d_output]` with what the adapter adds, in f32: a layer of it computes the same.
    pub fn merged(&self) -> Tensor<B, 2> {
        let added = high_precision(|| self.b.val().matmul(self.a.val())).transpose();
        self.base.weight() + added * self.scale()
    }
}

impl<B: Backend> LoraLinear<B> {
    /// How it was made.
    pub fn config(&self) -> LoraConfig {
        let [rank, _] = self.a.dims();
        LoraConfig::new(rank).with_alpha(self.alpha).with_dropout(self.dropout)
    }

    /// What the product of the adapter is multiplied by.
    fn scale(&self) -> f64 {
        let [rank, _] = self.a.dims();
        self.alpha / rank as f64
    }
}

impl<B: Backend> ModuleDisplay for LoraLinear<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let LoraConfig { rank, alpha, dropout } = self.config();
        content
            .add("base", &self.base)
            .add("rank", &rank)
            .add("alpha", &alpha)
            .add("dropout", &dropout)
            .optional()
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "LoRA adapter", reason }
}
