//! Handwritten digits on Burn 0.22, learnt by Burn's own layers in f32, by this project's in FP8, and with the feature `device` also by Burn's own on a device
//! that runs in FP8. Loop and optimizer are the same, and each of three seeds begins with the same weights in all of them.
//!
//! `cargo run --release -p digits-next`, `cargo run --release -p digits-next --features device`

use std::time::Instant;

use anyhow::Result;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_fp8_next::nn::Fp8Linear;
use burn_fp8_next::{ops, trace};
use data::{CLASSES, Digits, PIXELS, Samples};

#[path = "../../digits/src/data.rs"]
mod data;

const EPOCHS: usize = 10;
const BATCH: usize = 64;

/// A linear layer, Burn's or that of burn-fp8-next.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has three of them")]
enum Layer {
    Linear(Linear),
    Fp8(Fp8Linear),
}

impl Layer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Linear(layer) => layer.forward(x),
            Self::Fp8(layer) => layer.forward(x),
        }
    }

    fn in_fp8(self) -> Self {
        match self {
            Self::Linear(layer) => Self::Fp8(layer.into()),
            layer => layer,
        }
    }
}

#[derive(Module, Debug)]
struct Classifier {
    layers: Vec<Layer>,
}

impl Classifier {
    fn new(device: &Device) -> Self {
        let layer = |[inputs, outputs]: [usize; 2]| {
            Layer::Linear(LinearConfig::new(inputs, outputs).init(device))
        };
        Self { layers: [[PIXELS, 128], [128, 128], [128, CLASSES]].map(layer).into() }
    }

    /// The same model of FP8 layers. The last one has too few outputs: the filter leaves it in f32.
    fn with_fp8_layers(self) -> Self {
        Self { layers: self.layers.into_iter().map(Layer::in_fp8).collect() }
    }

    /// From images `[N, 64]` to the logits of the digits `[N, 10]`.
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let (output, hidden) = self.layers.split_last().expect("three layers");
        output.forward(hidden.iter().fold(images, |x, layer| relu(layer.forward(x))))
    }
}

fn images(samples: &Samples, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(samples.pixels.clone(), [samples.len(), PIXELS]), device)
}

fn loss(model: &Classifier, batch: &Samples, device: &Device) -> Tensor<1> {
    let labels = Tensor::<1, Int>::from_data(TensorData::from(batch.labels.as_slice()), device);
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    cross_entropy.forward(model.forward(images(batch, device)), labels)
}

/// The share of test images that the trained model gets right.
fn train(mut model: Classifier, epochs: usize, digits: &Digits, device: &Device) -> f64 {
    let mut optimizer = AdamConfig::new().init();
    let order: Vec<_> = (0..digits.train.len()).collect();
    for _ in 0..epochs {
        for indices in order.chunks(BATCH) {
            let loss = loss(&model, &digits.train.select(indices), device);
            // In place of loss.backward(): it tells a served device which operands are gradients, and ends a step of delayed scaling.
            let gradients = GradientsParams::from_grads(ops::backward(loss), &model);
            model = optimizer.step(2e-3, model, gradients);
        }
    }
    let device = device.clone().without_autodiff();
    let answers = model.valid().forward(images(&digits.test, &device)).argmax(1).into_data();
    let pairs = answers.iter::<i32>().zip(&digits.test.labels);
    pairs.filter(|(answer, label)| answer == *label).count() as f64 / digits.test.len() as f64
}

fn main() -> Result<()> {
    let digits = Digits::load()?;
    let device = Device::flex().autodiff();
    println!(
        "{} images, {EPOCHS} epochs; the share of {} others that is right:",
        digits.train.len(),
        digits.test.len()
    );
    for seed in 1..=3 {
        device.seed(seed);
        let model = Classifier::new(&device);
        let run = |name, model: Classifier, device: &Device| {
            let start = Instant::now();
            let right = train(model, EPOCHS, &digits, device);
            println!("seed {seed}, {name}: {:.2} % in {:.1?}", 100.0 * right, start.elapsed());
        };
        run("f32", model.clone(), &device);
        run("FP8 layers", model.clone().with_fp8_layers(), &device);
        #[cfg(feature = "device")]
        {
            let served = burn_fp8_next::device::flex().autodiff();
            run("FP8 device", model.fork(&served), &served);
        }
    }
    let batch = digits.train.select(&(0..BATCH).collect::<Vec<_>>());
    let model = Classifier::new(&device).with_fp8_layers();
    let (_, report) = trace(|| ops::backward(loss(&model, &batch, &device)));
    println!("{report}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guessing is right at one of ten.
    #[test]
    fn layers_train_in_fp8() {
        let digits = Digits::load().expect("built-in data");
        let device = Device::flex().autodiff();
        device.seed(1);
        let model = Classifier::new(&device).with_fp8_layers();
        let batch = digits.train.select(&(0..BATCH).collect::<Vec<_>>());
        let (_, report) = trace(|| ops::backward(loss(&model, &batch, &device)));
        // Two of the first layer, whose input needs no gradient, and three of the second.
        assert_eq!(report.fp8().count(), 5, "{report}");
        assert!(train(model, 3, &digits, &device) > 0.85);
    }
}
