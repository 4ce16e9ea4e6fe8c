//! One training run, the same for every backend.

use std::time::Instant;

use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Int, Tensor, TensorData};
use burn_fp8::Report;
use indicatif::ProgressBar;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::data::{Digits, Samples};
use crate::model::{Classifier, images};

/// Images a step.
pub const BATCH: usize = 64;
const LEARNING_RATE: f64 = 2e-3;

/// What a run came to.
pub struct Outcome {
    /// The mean training loss of each epoch.
    pub losses: Vec<f32>,
    /// The share of the test images that the trained model gets right.
    pub test_accuracy: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// The matrix products of the first step.
    pub first_step: Report,
}

/// Steps in an epoch.
pub fn steps(digits: &Digits) -> usize {
    digits.train.len().div_ceil(BATCH)
}

/// Trains a new model with Adam and tests it.
pub fn train<B: AutodiffBackend>(
    digits: &Digits,
    epochs: u32,
    seed: u64,
    progress: &ProgressBar,
) -> Outcome {
    let device = B::Device::default();
    // Both runs of a seed start from the same weights and see the images in the same order.
    B::seed(&device, seed);
    let mut order_rng = StdRng::seed_from_u64(seed);
    let mut model = Classifier::<B>::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let mut order: Vec<_> = (0..digits.train.len()).collect();
    let mut losses = Vec::new();
    let mut first_step = None;

    let start = Instant::now();
    for _ in 0..epochs {
        order.shuffle(&mut order_rng);
        let mut total = 0.0;
        for indices in order.chunks(BATCH) {
            let batch = digits.train.select(indices);
            let step = || {
                let loss = loss(&model, &batch, &device);
                (
                    loss.clone().into_scalar().elem::<f32>(),
                    GradientsParams::from_grads(loss.backward(), &model),
                )
            };
            let (value, gradients) = match first_step {
                None => {
                    let (result, report) = burn_fp8::trace(step);
                    first_step = Some(report);
                    result
                }
                Some(_) => step(),
            };
            model = optimizer.step(LEARNING_RATE, model, gradients);
            total += value * batch.len() as f32;
            progress.inc(1);
        }
        losses.push(total / digits.train.len() as f32);
    }
    let seconds = start.elapsed().as_secs_f64();

    Outcome {
        losses,
        test_accuracy: accuracy(&model.valid(), &digits.test, &device),
        seconds,
        first_step: first_step.unwrap_or_default(),
    }
}

fn loss<B: Backend>(model: &Classifier<B>, batch: &Samples, device: &B::Device) -> Tensor<B, 1> {
    let labels = Tensor::<B, 1, Int>::from_data(TensorData::from(batch.labels.as_slice()), device);
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    cross_entropy.forward(model.forward(images(batch, device)), labels)
}

/// Uses the same products as training: in FP8 where the layers trained in FP8.
fn accuracy<B: Backend>(model: &Classifier<B>, samples: &Samples, device: &B::Device) -> f64 {
    let answers = model.forward(images(samples, device)).argmax(1).into_data();
    let right = answers
        .iter::<i32>()
        .zip(&samples.labels)
        .filter(|(answer, label)| answer == *label)
        .count();
    right as f64 / samples.len() as f64
}
