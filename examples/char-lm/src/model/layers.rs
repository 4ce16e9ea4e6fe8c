//! The linear layers of the model, and their names.

use std::fmt;

use burn::module::Module;
use burn::nn::{Initializer, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::{Fp8Matmul, high_precision};
use examples_common::Layer;

/// The standard deviation of new weights, as in GPT-2.
pub(super) const DEVIATION: f64 = 0.02;

/// A linear layer by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Queries, keys and values of attention.
    Qkv,
    /// The output projection of attention.
    Projection,
    /// The first layer of the MLP.
    Up,
    /// The second layer of the MLP.
    Down,
    /// From the residual stream to the characters.
    Head,
}

impl LayerKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Qkv, Self::Projection, Self::Up, Self::Down, Self::Head];

    /// Those that each block has.
    pub const OF_BLOCK: [Self; 4] = [Self::Qkv, Self::Projection, Self::Up, Self::Down];

    /// The name that `--high` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Projection => "projection",
            Self::Up => "up",
            Self::Down => "down",
            Self::Head => "head",
        }
    }
}

/// Layers to keep out of FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Those of this kind, in all blocks.
    Kind(LayerKind),
    /// All of this block, counted from 0.
    Block(usize),
    /// One of this block.
    One(usize, LayerKind),
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => f.write_str(kind.as_str()),
            Self::Block(index) => write!(f, "block{index}"),
            Self::One(index, kind) => write!(f, "block{index}.{}", kind.as_str()),
        }
    }
}

/// A linear layer of the model.
#[derive(Module, Debug)]
pub struct Dense<B: Backend> {
    layer: Layer<B>,
    /// Whether its products stay out of FP8 whatever the configuration says.
    high_precision: bool,
}

impl<B: Fp8Matmul> Dense<B> {
    /// A layer of these inputs and outputs, weights drawn from a normal distribution of this deviation.
    pub fn new(inputs: usize, outputs: usize, deviation: f64, device: &B::Device) -> Self {
        let initializer = Initializer::Normal { mean: 0.0, std: deviation };
        let linear = LinearConfig::new(inputs, outputs).with_initializer(initializer).init(device);
        Self { layer: Layer::Linear(linear), high_precision: false }
    }

    /// The layer with an [`Fp8Linear`](burn_fp8::nn::Fp8Linear) in its place.
    pub fn with_fp8(self, config: &Fp8DotGeneralConfig) -> Self {
        let layer = self.layer.with_fp8(config);
        Self { layer, ..self }
    }

    /// The layer kept out of FP8.
    pub fn in_high_precision(self) -> Self {
        Self { high_precision: true, ..self }
    }

    /// `x` `[…, inputs]` to `[…, outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self.high_precision {
            true => high_precision(|| self.layer.forward(x)),
            false => self.layer.forward(x),
        }
    }
}
