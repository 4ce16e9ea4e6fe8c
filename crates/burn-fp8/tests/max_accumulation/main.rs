//! Several uses of one state combine by maximum, and nothing can add them up unseen.

#[path = "../common/mod.rs"]
mod common;

mod batches;
mod golden;
mod graph;
mod refused;

use burn::backend::{Autodiff, Flex};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig};
use burn_fp8::optim::Fp8Optimizer;

use common::values;

type B = Autodiff<Flex>;

fn layer<A: AutodiffBackend>() -> Fp8Linear<A> {
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(3);
    Fp8LinearConfig::new(2, 2).with_dot(dot).init(&Default::default())
}

fn input<A: AutodiffBackend>(amax: f32) -> Tensor<A, 2> {
    Tensor::from_floats([[amax, 0.5]], &Default::default())
}

fn grads_of<A: AutodiffBackend + Fp8Matmul>(layer: &Fp8Linear<A>, amax: f32) -> GradientsParams {
    let loss = layer.forward(input(amax)).sum();
    GradientsParams::from_grads(loss.backward(), layer)
}

fn history<A: AutodiffBackend>(layer: &Fp8Linear<A>) -> Vec<f32> {
    values(layer.dot.input.amax_history.val())
}

fn sgd<A: AutodiffBackend>() -> Fp8Optimizer<impl Optimizer<Fp8Linear<A>, A>> {
    Fp8Optimizer::new(SgdConfig::new().init::<A, Fp8Linear<A>>())
}
