//! What would add up or step the state is refused.

use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer,
    RmsPropConfig, SgdConfig,
};
use burn::tensor::Tensor;
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig};

use crate::common::panic_of;
use crate::{B, grads_of, history, layer, sgd};

fn refused(optimizer: impl Optimizer<Fp8Linear<B>, B>, name: &str) {
    let mut optimizer = optimizer;
    let layer = layer::<B>();
    let grads = grads_of(&layer, 2.0);
    let message = panic_of(|| optimizer.step(0.1, layer, grads));
    assert!(message.contains("plain optimizer"), "{name}: {message}");
    assert!(message.contains("burn_fp8::optim::Fp8Optimizer"), "{name}: {message}");
}

#[test]
fn plain_optimizers_are_refused() {
    let momentum = Some(MomentumConfig::new());
    let decay = Some(WeightDecayConfig::new(0.1));
    refused(SgdConfig::new().init(), "sgd");
    refused(SgdConfig::new().with_momentum(momentum).with_weight_decay(decay).init(), "momentum");
    refused(AdamConfig::new().init(), "adam");
    refused(AdamWConfig::new().init(), "adamw");
    refused(RmsPropConfig::new().init(), "rmsprop");
    refused(AdaGradConfig::new().init(), "adagrad");
}

/// A history of one entry makes scale and history of one shape.
#[test]
fn plain_optimizers_are_refused_with_a_history_of_one() {
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(1);
    let layer: Fp8Linear<B> = Fp8LinearConfig::new(2, 2).with_dot(dot).init(&Default::default());
    let grads = grads_of(&layer, 2.0);
    let mut optimizer = SgdConfig::new().init();
    let message = panic_of(|| optimizer.step(0.1, layer, grads));
    assert!(message.contains("plain optimizer"), "{message}");
}

/// Every gradient, FP8 state included, times a factor.
fn scaled(layer: &Fp8Linear<B>, mut grads: GradientsParams, factor: f32) -> GradientsParams {
    struct Scale<'a>(&'a mut GradientsParams, f32);
    impl ModuleVisitor<B> for Scale<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(grad) = self.0.remove::<Flex, D>(param.id) {
                self.0.register(param.id, grad * self.1);
            }
        }
    }
    layer.visit(&mut Scale(&mut grads, factor));
    grads
}

#[test]
fn means_and_scaled_gradients_are_refused() {
    let layer = layer::<B>();
    let mean = |amaxes: [f32; 2]| {
        let mut accumulator = GradientsAccumulator::new();
        for amax in amaxes {
            accumulator.accumulate(&layer, grads_of(&layer, amax));
        }
        scaled(&layer, accumulator.grads(), 0.5)
    };
    // As an all-reduce by mean over devices would leave them: the scales are equal, the amaxes are not.
    let message = panic_of(|| sgd::<B>().step(0.1, layer.clone(), mean([2.0, 3.0])));
    assert!(message.contains("adding or averaging"), "{message}");
    assert!(message.contains("dot.input.amax_history"), "{message}");
    // The mean of equal values is their maximum.
    let stepped = sgd::<B>().step(0.1, layer.clone(), mean([2.0, 2.0]));
    assert_eq!(history(&stepped), [2.0, 0.0, 0.0]);
    // Gradients scaled by hand, as to undo a loss scale.
    let grads = scaled(&layer, grads_of(&layer, 2.0), 0.125);
    let message = panic_of(|| sgd::<B>().step(0.1, layer.clone(), grads));
    assert!(message.contains("adding or averaging"), "{message}");
    // Values that are not finite have roots that are not finite.
    for amax in [f32::NAN, f32::INFINITY] {
        let stepped = sgd::<B>().step(0.1, layer.clone(), grads_of(&layer, amax));
        assert!(!history(&stepped)[0].is_finite());
    }
}

#[test]
fn sums_of_burns_accumulator_are_refused() {
    let layer = layer::<B>();
    let mut accumulator = GradientsAccumulator::new();
    for amax in [2.0, 3.0] {
        accumulator.accumulate(&layer, grads_of(&layer, amax));
    }
    let before = history(&layer);
    let grads = accumulator.grads();
    let message = panic_of(|| sgd::<B>().step(0.1, layer.clone(), grads));
    assert!(message.contains("accumulated by adding"), "{message}");
    assert!(message.contains("Fp8GradientsAccumulator"), "{message}");
    assert!(message.contains("dot.input.scale"), "{message}");
    assert_eq!(history(&layer), before);
}
