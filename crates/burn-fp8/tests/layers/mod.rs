//! FP8 layers: what they compute, their state, which is combined by maximum and never added up unseen, their records, and Burn's `Learner`.

mod attention;
mod attention_golden;
mod batches;
mod cache;
mod graph;
mod layers;
mod learner;
mod pointwise;
mod records;
mod refused;
mod standing;

use crate::common::*;

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
