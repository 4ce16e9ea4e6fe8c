//! The state of FP8 layers: combined by maximum, in a graph, over batches, devices and copies; never added up or stepped unseen.

use burn::module::ModuleVisitor;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, MultiGradientsParams, RmsPropConfig};
use burn::prelude::DeviceOps;
use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};
use burn_fp8::optim::Fp8GradientsAccumulator;

use crate::common::*;

type B = Autodiff<Flex>;

fn layer<A: AutodiffBackend>(history: usize) -> Fp8Linear<A> {
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(history);
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

fn scale<A: AutodiffBackend>(layer: &Fp8Linear<A>) -> f32 {
    values(layer.dot.input.scale.val())[0]
}

fn sgd<A: AutodiffBackend>() -> Fp8Optimizer<impl Optimizer<Fp8Linear<A>, A>> {
    Fp8Optimizer::new(SgdConfig::new().init::<A, Fp8Linear<A>>())
}

fn options() -> QdqOptions {
    QdqOptions::new(E4M3)
}

fn fresh_state() -> (Tensor<B, 1>, Tensor<B, 1>) {
    (ones([1]).require_grad(), tensor(&[0.0; 3], [3]).require_grad())
}

/// The documented example: x = 2, y = 3. A use that never ran leaves no trace.
#[test]
fn reused_state_takes_the_maximum() {
    for inputs in [[2.0, 3.0], [3.0, 2.0]] {
        let (scale, history) = fresh_state();
        let [x, y, unused] = [inputs[0], inputs[1], 100.0].map(|input| {
            in_qdq(tensor::<B, 1>(&[input], [1]), scale.clone(), history.clone(), options())
        });
        let grads = (x * y).backward();
        drop(unused);
        assert_eq!(grad(&scale, &grads), [1.0]);
        assert_eq!(grad(&history, &grads), [3.0, 0.0, 0.0]);
        let (other_scale, other_history) = fresh_state();
        assert!(other_scale.grad(&grads).is_none() && other_history.grad(&grads).is_none());
    }
}

#[test]
fn untracked_state_works_and_receives_nothing() {
    let x = tensor::<B, 1>(&[2.0, 3.3], [2]).require_grad();
    let (scale, history) = (ones::<B, 1>([1]), tensor::<B, 1>(&[448.0], [1]));
    let y = in_qdq(x.clone(), scale.clone(), history.clone(), options());
    assert_eq!(values(y.clone()), [2.0, 3.25]);
    let grads = y.backward();
    assert_eq!(grad(&x, &grads), [1.0, 1.0]);
    assert!(scale.grad(&grads).is_none() && history.grad(&grads).is_none());
}

#[test]
fn state_that_is_no_leaf_is_refused() {
    let (scale, history) = fresh_state();
    let x = ones::<B, 1>([2]);
    for op in [in_qdq::<B, 1>, out_qdq::<B, 1>] {
        for (scale, history) in
            [(scale.clone() * 1.0, history.clone()), (scale.clone(), history.clone() * 1.0)]
        {
            panics(|| op(x.clone(), scale, history, options()), ["must be a leaf"]);
        }
    }
    // A computed tensor that is not tracked is no leaf's child.
    let y = in_qdq(x, scale.detach().set_require_grad(false) * 1.0, history, options());
    assert_eq!(values(y), [1.0, 1.0]);
}

#[test]
fn a_layer_used_through_its_clone_takes_the_maximum() {
    fn check<A: AutodiffBackend + Fp8Matmul>() {
        let layer = layer::<A>(3);
        let clone = layer.clone();
        let y = layer.forward(input(2.0)) + clone.forward(input(3.0)) + layer.forward(input(1.0));
        let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
        let layer = sgd::<A>().step(0.1, layer, grads);
        assert_eq!((history(&layer), scale(&layer)), (vec![3.0, 0.0, 0.0], 1.0));
        // The next step takes its scale from this history: 3 / 448, by Flax's formula.
        let grads = grads_of(&layer, 1.0);
        let layer = sgd::<A>().step(0.1, layer, grads);
        assert_eq!((history(&layer), scale(&layer)), (vec![1.0, 0.0, 3.0], 1.0 / (448.0 / 3.0f32)));
    }
    check::<B>();
    check::<Outer<Flex>>();
    check::<Inner<Flex>>();
}

/// Nor does a fork, which trains by itself. (A tracked model moved with `to_device` would have state that is no leaf.)
#[test]
fn a_layer_that_took_no_part_keeps_its_state() {
    let one = layer::<B>(3);
    let other = [2.0, 3.0].into_iter().fold(layer::<B>(3), |other, amax| {
        let grads = grads_of(&other, amax);
        sgd::<B>().step(0.1, other, grads)
    });
    let before = (history(&other), scale(&other));
    assert_eq!(before.0, [3.0, 0.0, 2.0]);
    let mut grads = grads_of(&one, 2.0);
    for id in burn::module::list_param_ids(&other) {
        assert!(grads.remove::<Flex, 2>(id).is_none());
    }
    let other = sgd::<B>().step(0.1, other, grads);
    assert_eq!((history(&other), scale(&other)), before);

    let forked = one.clone().fork(&Default::default());
    let mut grads = (one.forward(input(2.0)) + forked.forward(input(3.0))).sum().backward();
    let [of_one, of_forked] =
        [&one, &forked].map(|layer| GradientsParams::from_module(&mut grads, layer));
    assert_eq!(history(&sgd::<B>().step(0.1, one, of_one)), [2.0, 0.0, 0.0]);
    assert_eq!(history(&sgd::<B>().step(0.1, forked, of_forked)), [3.0, 0.0, 0.0]);
}

/// Gradients of weights add up, state takes the maximum. A NaN of either side stays, as in the graph.
#[test]
fn micro_batches_take_the_maximum() {
    for (batches, expected) in
        [(&[2.0, 3.0, 1.0][..], 3.0), (&[f32::NAN, 2.0], f32::NAN), (&[2.0, f32::NAN], f32::NAN)]
    {
        let layer = layer::<B>(3);
        let weight = |grads: &GradientsParams| grads.get::<Flex, 2>(layer.weight.id).unwrap();
        let mut sum = Tensor::<Flex, 2>::zeros([2, 2], &Default::default());
        let mut accumulator = Fp8GradientsAccumulator::new();
        for amax in batches {
            let grads = grads_of(&layer, *amax);
            sum = sum + weight(&grads);
            accumulator.accumulate(&layer, grads);
        }
        let grads = accumulator.grads();
        assert_same(&values(weight(&grads)), &values(sum), "the gradient of the weight");
        assert!(accumulator.grads().is_empty(), "the accumulator starts anew");
        let stepped = sgd::<B>().step(0.0, layer.clone(), grads);
        assert_same(&history(&stepped), &[expected, 0.0, 0.0], "the history");
    }
}

/// Gradients of batches, added up by Burn.
fn sum(layer: &Fp8Linear<B>, amaxes: [f32; 2]) -> GradientsParams {
    let mut accumulator = GradientsAccumulator::new();
    for amax in amaxes {
        accumulator.accumulate(layer, grads_of(layer, amax));
    }
    accumulator.grads()
}

fn of_two_devices(layer: &Fp8Linear<B>) -> MultiGradientsParams {
    let device: <B as burn::tensor::backend::BackendTypes>::Device = Default::default();
    let grads = [2.0, 3.0].map(|amax| (grads_of(layer, amax), device.to_id()));
    MultiGradientsParams { grads: grads.into() }
}

#[test]
fn gradients_of_several_devices_take_the_maximum() {
    let layer = layer::<B>(3);
    let (sum_of_both, _) = of_two_devices(&layer).remove::<Flex, 2>(layer.weight.id).unwrap();
    let before = layer.weight.val().inner();
    let stepped = sgd::<B>().step_multi(0.5, layer.clone(), of_two_devices(&layer));
    assert_eq!(history(&stepped), [3.0, 0.0, 0.0]);
    assert_eq!(values(stepped.weight.val()), values(before - sum_of_both * 0.5));

    let mut accumulator = Fp8GradientsAccumulator::new();
    accumulator.accumulate_multi(&layer, of_two_devices(&layer));
    let stepped = sgd::<B>().step(0.5, layer.clone(), accumulator.grads());
    assert_eq!(history(&stepped), [3.0, 0.0, 0.0]);

    // A plain optimizer adds them up, and is noticed; so is a sum on one of the devices.
    let mut plain = SgdConfig::new().init();
    panics(|| plain.step_multi(0.5, layer.clone(), of_two_devices(&layer)), ["plain optimizer"]);
    let mut grads = of_two_devices(&layer);
    grads.grads[1].0 = sum(&layer, [2.0, 3.0]);
    panics(|| sgd::<B>().step_multi(0.5, layer.clone(), grads), ["accumulated by adding"]);
}

#[test]
fn plain_optimizers_are_refused() {
    fn check(mut optimizer: impl Optimizer<Fp8Linear<B>, B>) {
        // A history of one entry makes scale and history of one shape.
        for layer in [layer::<B>(3), layer(1)] {
            let grads = grads_of(&layer, 2.0);
            let words = ["plain optimizer", "burn_fp8::optim::Fp8Optimizer"];
            panics(|| optimizer.step(0.1, layer, grads), words);
        }
    }
    let momentum = Some(MomentumConfig::new());
    let decay = Some(WeightDecayConfig::new(0.1));
    check(SgdConfig::new().init());
    check(SgdConfig::new().with_momentum(momentum).with_weight_decay(decay).init());
    check(AdamConfig::new().init());
    check(AdamWConfig::new().init());
    check(RmsPropConfig::new().init());
    check(AdaGradConfig::new().init());
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
fn sums_means_and_scaled_gradients_are_refused() {
    let layer = layer::<B>(3);
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
