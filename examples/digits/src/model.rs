//! The model, written once for every backend, and the FP8 products it should run.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_fp8::burn_fp8_core::Rejection;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::{Fp8Config, Fp8Matmul, Gemm, ProductKind};
use examples_common::Layer;

use crate::data::{CLASSES, PIXELS, Samples};

/// Inputs and outputs of each layer: no two have both in common.
pub type Layers = [(usize, usize); 3];

/// The layers of a model whose hidden ones are so wide.
pub const fn layers(hidden: usize) -> Layers {
    [(PIXELS, hidden), (hidden, hidden), (hidden, CLASSES)]
}

/// Three linear layers with ReLU between them.
#[derive(Module, Debug)]
pub struct Classifier<B: Backend> {
    layers: Vec<Layer<B>>,
}

impl<B: Fp8Matmul> Classifier<B> {
    /// A model with weights drawn from the backend's random numbers.
    pub fn new(layers: Layers, device: &B::Device) -> Self {
        let layers = layers.map(|(inputs, outputs)| {
            Layer::Linear(LinearConfig::new(inputs, outputs).init(device))
        });
        let model = Self { layers: layers.into() };
        // Burn draws weights when they are first used; drawn now, they depend on nothing but the seed.
        model.num_params();
        model
    }

    /// The same model with FP8 layers in place of those that `expected` says run in FP8.
    pub fn with_fp8_layers(self, config: &Fp8DotGeneralConfig, expected: &[LayerProducts]) -> Self {
        let layers = self.layers.into_iter().zip(expected).map(|(layer, expected)| {
            if expected.products > 0 { layer.with_fp8(config) } else { layer }
        });
        Self { layers: layers.collect() }
    }

    /// From images `[N, 64]` to the logits of the digits `[N, 10]`.
    pub fn forward(&self, images: Tensor<B, 2>) -> Tensor<B, 2> {
        let (output, hidden) = self.layers.split_last().expect("a model has three layers");
        output.forward(hidden.iter().fold(images, |x, layer| relu(layer.forward(x))))
    }
}

/// The images as a tensor `[N, 64]`.
pub fn images<B: Backend>(samples: &Samples, device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(samples.pixels.clone(), [samples.len(), PIXELS]), device)
}

/// What a training step runs of one layer in FP8.
pub struct LayerProducts {
    /// Inputs of the layer.
    pub inputs: usize,
    /// Outputs of the layer.
    pub outputs: usize,
    /// The number of products in FP8.
    pub products: usize,
    /// Why it is 0, where the filter is the reason.
    pub rejection: Option<Rejection>,
}

/// What a training step with this many images should run in FP8: reckoned from the shapes, not from what ran.
pub fn expected_products(config: &Fp8Config, images: usize, layers: Layers) -> Vec<LayerProducts> {
    let filter = &config.filter;
    let layer = |(index, (inputs, outputs))| {
        let gemm = Gemm::matrix(images, outputs, inputs);
        let check = || filter.check(ProductKind::Linear, gemm).and(filter.check_gain(gemm, true));
        let rejection = config.enabled.then(|| check().err()).flatten();
        let products = match (config.enabled && rejection.is_none(), index) {
            (false, _) => 0,
            // output and grad_weight: nobody needs the gradient of the images.
            (true, 0) => 2,
            // output, grad_input and grad_weight.
            (true, _) => 3,
        };
        LayerProducts { inputs, outputs, products, rejection }
    };
    layers.into_iter().enumerate().map(layer).collect()
}
