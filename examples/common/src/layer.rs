//! A linear layer, Burn's or that of burn-fp8.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear};

/// A linear layer, Burn's or that of burn-fp8.
#[derive(Module, Debug)]
#[allow(missing_docs, reason = "each variant is what it is called")]
#[allow(clippy::large_enum_variant, reason = "a model has few of them")]
pub enum Layer<B: Backend> {
    Linear(Linear<B>),
    Fp8(Fp8Linear<B>),
}

impl<B: Fp8Matmul> Layer<B> {
    /// The layer as an FP8 layer.
    pub fn with_fp8(self, config: &Fp8DotGeneralConfig) -> Self {
        match self {
            Self::Linear(linear) => Self::Fp8(Fp8Linear::from_linear(linear, config)),
            fp8 => fp8,
        }
    }

    /// `x` `[…, inputs]` to `[…, outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::Linear(layer) => layer.forward(x),
            Self::Fp8(layer) => layer.forward(x),
        }
    }
}
