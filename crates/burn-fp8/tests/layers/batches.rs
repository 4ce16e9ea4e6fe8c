//! Several batches, devices and models.

use burn::optim::MultiGradientsParams;
use burn::prelude::DeviceOps;
use burn_fp8::optim::Fp8GradientsAccumulator;

use super::{B, grads_of, history, input, layer, sgd};
use crate::common::*;

/// Gradients of weights add up, state takes the maximum.
#[test]
fn micro_batches_take_the_maximum() {
    let layer = layer::<B>();
    let weight = |grads: &GradientsParams| values(grads.get::<Flex, 2>(layer.weight.id).unwrap());
    let batches = [2.0, 3.0, 1.0].map(|amax| grads_of(&layer, amax));
    let mut sum = vec![0.0; 4];
    let mut accumulator = Fp8GradientsAccumulator::new();
    for grads in batches {
        for (sum, grad) in sum.iter_mut().zip(weight(&grads)) {
            *sum += grad;
        }
        accumulator.accumulate(&layer, grads);
    }
    let grads = accumulator.grads();
    assert_eq!(weight(&grads), sum);
    assert!(accumulator.grads().is_empty(), "the accumulator starts anew");
    let layer = sgd::<B>().step(0.1, layer.clone(), grads);
    assert_eq!(history(&layer), [3.0, 0.0, 0.0]);
}

fn of_two_devices(layer: &Fp8Linear<B>) -> MultiGradientsParams {
    let device: <B as burn::tensor::backend::BackendTypes>::Device = Default::default();
    let grads = [2.0, 3.0].map(|amax| (grads_of(layer, amax), device.to_id()));
    MultiGradientsParams { grads: grads.into() }
}

#[test]
fn gradients_of_several_devices_take_the_maximum() {
    let layer = layer::<B>();
    let mut grads = of_two_devices(&layer);
    let (sum, _) = grads.remove::<Flex, 2>(layer.weight.id).unwrap();
    let grads = of_two_devices(&layer);
    let before = values(layer.weight.val());
    let stepped = sgd::<B>().step_multi(0.5, layer.clone(), grads);
    assert_eq!(history(&stepped), [3.0, 0.0, 0.0]);
    let expected: Vec<_> =
        before.iter().zip(values(sum)).map(|(weight, grad)| weight - 0.5 * grad).collect();
    assert_eq!(values(stepped.weight.val()), expected);

    let mut accumulator = Fp8GradientsAccumulator::new();
    accumulator.accumulate_multi(&layer, of_two_devices(&layer));
    let stepped = sgd::<B>().step(0.5, layer.clone(), accumulator.grads());
    assert_eq!(history(&stepped), [3.0, 0.0, 0.0]);

    // A plain optimizer adds them up, and is noticed.
    let mut plain = SgdConfig::new().init();
    let add = || plain.step_multi(0.5, layer.clone(), of_two_devices(&layer));
    panics(add, ["plain optimizer"]);

    // So is a sum on one of the devices.
    let mut sums = GradientsAccumulator::new();
    for amax in [2.0, 3.0] {
        sums.accumulate(&layer, grads_of(&layer, amax));
    }
    let mut grads = of_two_devices(&layer);
    grads.grads[1].0 = sums.grads();
    let step = || sgd::<B>().step_multi(0.5, layer.clone(), grads);
    panics(step, ["accumulated by adding"]);
}

/// A NaN of either side stays, as in the graph.
#[test]
fn micro_batches_keep_a_nan() {
    for batches in [[f32::NAN, 2.0], [2.0, f32::NAN]] {
        let layer = layer::<B>();
        let mut accumulator = Fp8GradientsAccumulator::new();
        for amax in batches {
            accumulator.accumulate(&layer, grads_of(&layer, amax));
        }
        let layer = sgd::<B>().step(0.0, layer, accumulator.grads());
        let history = history(&layer);
        assert!(history[0].is_nan(), "{history:?}");
        assert_eq!(history[1..], [0.0, 0.0]);
    }
}

/// A tracked model moved with `to_device` would have state that is no leaf; `fork` is the way.
#[test]
fn a_forked_model_trains_by_itself() {
    let original = layer::<B>();
    let forked = original.clone().fork(&Default::default());
    let y = original.forward(input(2.0)) + forked.forward(input(3.0));
    let mut grads = y.sum().backward();
    let of_original = GradientsParams::from_module(&mut grads, &original);
    let of_forked = GradientsParams::from_module(&mut grads, &forked);
    assert_eq!(history(&sgd::<B>().step(0.1, original, of_original)), [2.0, 0.0, 0.0]);
    assert_eq!(history(&sgd::<B>().step(0.1, forked, of_forked)), [3.0, 0.0, 0.0]);
}
