//! One training run, the same for every backend.

use std::time::Instant;

use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion, Int, Tensor, TensorData};
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{Fp8Matmul, Report};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::data::{Digits, Samples};
use crate::model::{Classifier, LayerProducts, Layers, images};

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

/// What a run trains, how long, and from which random numbers.
pub struct Plan<'a> {
    /// The images.
    pub digits: &'a Digits,
    /// How often it goes through them.
    pub epochs: u32,
    /// The seed of weights and order.
    pub seed: u64,
    /// The layers of the model.
    pub layers: Layers,
    /// Where to replace the linear layers, and by what.
    pub fp8_layers: Option<(Fp8DotGeneralConfig, &'a [LayerProducts])>,
}

/// Trains a new model with Adam and tests it.
///
/// All recipes run this very loop. The optimizer is wrapped for the sake of the FP8 layers, whose scales are no weights; for
/// every other model the wrapper is Adam itself.
pub fn train<B>(plan: Plan) -> Outcome
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let Plan { digits, epochs, seed, layers, fp8_layers } = plan;
    let device = B::Device::default();
    // All runs of a seed start from the same weights and see the images in the same order.
    B::seed(&device, seed);
    let mut order_rng = StdRng::seed_from_u64(seed);
    let mut model = Classifier::<B>::new(layers, &device);
    if let Some((config, expected)) = fp8_layers {
        model = model.with_fp8_layers(&config, expected);
    }
    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init());
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
                Some(_) => step(),
                None => {
                    let (result, report) = burn_fp8::trace(step);
                    first_step = Some(report);
                    result
                }
            };
            model = optimizer.step(LEARNING_RATE, model, gradients);
            total += value * batch.len() as f32;
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

fn loss<B: Fp8Matmul>(model: &Classifier<B>, batch: &Samples, device: &B::Device) -> Tensor<B, 1> {
    let labels = Tensor::<B, 1, Int>::from_data(TensorData::from(batch.labels.as_slice()), device);
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    cross_entropy.forward(model.forward(images(batch, device)), labels)
}

/// Uses the same products as training: in FP8 where the layers trained in FP8.
fn accuracy<B: Fp8Matmul>(model: &Classifier<B>, samples: &Samples, device: &B::Device) -> f64 {
    let answers = model.forward(images(samples, device)).argmax(1).into_data();
    let right = answers
        .iter::<i32>()
        .zip(&samples.labels)
        .filter(|(answer, label)| answer == *label)
        .count();
    right as f64 / samples.len() as f64
}
