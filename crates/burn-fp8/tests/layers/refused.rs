//! What would add up or step the state is refused.

use burn::module::ModuleVisitor;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, RmsPropConfig};

use super::{B, grads_of, history, layer, sgd};
use crate::common::*;

#[test]
fn plain_optimizers_are_refused() {
    fn refused(mut optimizer: impl Optimizer<Fp8Linear<B>, B>) {
        // A history of one entry makes scale and history of one shape.
        let dot = Fp8DotGeneralConfig::new().with_amax_history_length(1);
        let one = Fp8LinearConfig::new(2, 2).with_dot(dot).init(&Default::default());
        for layer in [layer::<B>(), one] {
            let grads = grads_of(&layer, 2.0);
            let words = ["plain optimizer", "burn_fp8::optim::Fp8Optimizer"];
            panics(|| optimizer.step(0.1, layer, grads), words);
        }
    }
    let momentum = Some(MomentumConfig::new());
    let decay = Some(WeightDecayConfig::new(0.1));
    refused(SgdConfig::new().init());
    refused(SgdConfig::new().with_momentum(momentum).with_weight_decay(decay).init());
    refused(AdamConfig::new().init());
    refused(AdamWConfig::new().init());
    refused(RmsPropConfig::new().init());
    refused(AdaGradConfig::new().init());
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

/// Gradients of batches, added up by Burn.
fn sum(layer: &Fp8Linear<B>, amaxes: [f32; 2]) -> GradientsParams {
    let mut accumulator = GradientsAccumulator::new();
    for amax in amaxes {
        accumulator.accumulate(layer, grads_of(layer, amax));
    }
    accumulator.grads()
}

#[test]
fn sums_means_and_scaled_gradients_are_refused() {
    let layer = layer::<B>();
    let step = |grads| sgd::<B>().step(0.1, layer.clone(), grads);
    let words = ["accumulated by adding", "Fp8GradientsAccumulator", "dot.input.scale"];
    panics(|| step(sum(&layer, [2.0, 3.0])), words);
    // As an all-reduce by mean over devices would leave them: the scales are equal, the amaxes are not.
    let mean = |amaxes| scaled(&layer, sum(&layer, amaxes), 0.5);
    panics(|| step(mean([2.0, 3.0])), ["adding or averaging", "dot.input.amax_history"]);
    // The mean of equal values is their maximum.
    assert_eq!(history(&step(mean([2.0, 2.0]))), [2.0, 0.0, 0.0]);
    // Gradients scaled by hand, as to undo a loss scale.
    panics(|| step(scaled(&layer, grads_of(&layer, 2.0), 0.125)), ["adding or averaging"]);
    assert_eq!(history(&layer), [0.0; 3]);
    // Values that are not finite have roots that are not finite.
    for amax in [f32::NAN, f32::INFINITY] {
        assert!(!history(&step(grads_of(&layer, amax)))[0].is_finite());
    }
}
