//! FP8 in some layers only, on Burn's own backend: an `Fp8Linear` keeps its scales in the model, is trained, and is frozen for serving.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Distribution, ElementConversion, Tensor};
use burn_fp8::Fp8Error;
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear};
use burn_fp8::optim::Fp8Optimizer;

type B = Autodiff<Flex>;

const STEPS: usize = 200;

#[derive(Module, Debug)]
struct Model<B: burn_fp8::Fp8Matmul> {
    /// In FP8.
    up: Fp8Linear<B>,
    /// In f32.
    down: Linear<B>,
}

fn main() -> Result<(), Fp8Error> {
    let device = Default::default();
    let up = LinearConfig::new(32, 128).init(&device);
    let mut model = Model::<B> {
        up: Fp8Linear::from_linear(up, &Fp8DotGeneralConfig::new()),
        down: LinearConfig::new(128, 32).init(&device),
    };
    // Scales and histories are parameters of the model, and no weights: this leaves them to the layer.
    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init::<B, Model<B>>());
    for step in 1..=STEPS {
        let x = Tensor::<B, 2>::random([64, 32], Distribution::Normal(0.0, 1.0), &device);
        let y = model.down.forward(relu(model.up.forward(x.clone())));
        let loss = MseLoss::new().forward(y, x, Reduction::Mean);
        if step == 1 || step == STEPS {
            println!("step {step}: loss {:.4}", loss.clone().into_scalar().elem::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }
    let frozen = model.up.valid().freeze()?;
    println!("frozen: {} bytes for {} weights and 128 biases", frozen.bytes(), 32 * 128);
    let x = Tensor::<Flex, 2>::random([1, 32], Distribution::Normal(0.0, 1.0), &device);
    println!("an answer of {:?}", frozen.forward(x).dims());
    Ok(())
}
