//! A perceptron trained in f32 and in FP8: what changes is one type.

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, ElementConversion, Tensor};
use burn_fp8::{Fp8Backend, trace};

const STEPS: usize = 200;

#[derive(Module, Debug)]
struct Perceptron<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> Perceptron<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            up: LinearConfig::new(32, 128).init(device),
            down: LinearConfig::new(128, 32).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.down.forward(relu(self.up.forward(x)))
    }
}

/// Trains on what another perceptron answers; the loss of the last step.
fn train<B: AutodiffBackend>() -> f32 {
    let device = Default::default();
    B::seed(&device, 1);
    let (teacher, mut model) = (Perceptron::<B>::new(&device), Perceptron::<B>::new(&device));
    let mut optimizer = AdamConfig::new().init();
    let mut last = f32::NAN;
    for _ in 0..STEPS {
        let x = Tensor::random([64, 32], Distribution::Normal(0.0, 1.0), &device);
        let target = teacher.forward(x.clone()).detach();
        let loss = MseLoss::new().forward(model.forward(x), target, Reduction::Mean);
        last = loss.clone().into_scalar().elem();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }
    last
}

fn main() {
    println!("f32: loss {:.4} after {STEPS} steps", train::<Autodiff<Flex>>());
    // The trace tells what ran; a training does without it.
    let (loss, report) = trace(train::<Fp8Backend<Autodiff<Flex>>>);
    println!("FP8: loss {loss:.4} after {STEPS} steps, {} products in FP8", report.fp8().count());
}
