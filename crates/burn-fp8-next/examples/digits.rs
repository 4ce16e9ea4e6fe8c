//! Handwritten digits, learnt by Burn's own layers in f32 and in FP8: model, loop and optimizer are the same, only the device is another. Each of three
//! seeds begins with the same weights on both.
//!
//! `cargo run --release -p burn-fp8-next --features device --example digits`

use std::time::Instant;

use anyhow::Result;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_fp8_next::{device, ops};
use data::{CLASSES, Digits, PIXELS, Samples};

#[path = "../../../examples/digits/src/data.rs"]
mod data;

const EPOCHS: usize = 10;
const BATCH: usize = 64;

#[derive(Module, Debug)]
struct Classifier {
    layers: Vec<Linear>,
}

impl Classifier {
    fn new(device: &Device) -> Self {
        let layer = |[inputs, outputs]: [usize; 2]| LinearConfig::new(inputs, outputs).init(device);
        Self { layers: [[PIXELS, 128], [128, 128], [128, CLASSES]].map(layer).into() }
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
fn train(mut model: Classifier, digits: &Digits, device: &Device) -> f64 {
    let mut optimizer = AdamConfig::new().init();
    let order: Vec<_> = (0..digits.train.len()).collect();
    for _ in 0..EPOCHS {
        for indices in order.chunks(BATCH) {
            let loss = loss(&model, &digits.train.select(indices), device);
            // In place of loss.backward(): it tells the device which operands are gradients.
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
    let [f32, fp8] = [Device::flex(), device::flex()].map(Device::autodiff);
    println!(
        "{} images, {EPOCHS} epochs; the share of {} others that is right:",
        digits.train.len(),
        digits.test.len()
    );
    for seed in 1..=3 {
        f32.seed(seed);
        let model = Classifier::new(&f32);
        for (name, device) in [("f32", &f32), ("FP8", &fp8)] {
            let start = Instant::now();
            let right = train(model.clone().fork(device), &digits, device);
            println!("seed {seed}, {name}: {:.2} % in {:.1?}", 100.0 * right, start.elapsed());
        }
    }
    let (_, report) = device::trace(&fp8, || {
        let model = Classifier::new(&fp8);
        ops::backward(loss(&model, &digits.train.select(&(0..BATCH).collect::<Vec<_>>()), &fp8))
    });
    println!("{report}");
    Ok(())
}
