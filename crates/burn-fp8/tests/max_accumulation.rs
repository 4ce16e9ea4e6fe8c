//! Several uses of one state combine by maximum, and nothing can add them up unseen.

mod common;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams,
    MultiGradientsParams, Optimizer, RmsPropConfig, SgdConfig,
};
use burn::prelude::DeviceOps;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig};
use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};
use burn_fp8::optim::{Fp8GradientsAccumulator, Fp8Optimizer};
use burn_fp8::{Fp8Format, Fp8Matmul};
use common::golden::{Golden, assert_same, exact};
use common::{Outer, panic_of, values};

type B = Autodiff<Flex>;

/// In which order the backward pass comes to the uses: it goes by depth in the graph.
#[derive(Clone, Copy, Debug)]
enum Order {
    Forward,
    Backward,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Inputs {
    Tracked,
    Untracked,
}

fn golden_cases<B: AutodiffBackend + Fp8Matmul>(order: Order, inputs: Inputs) -> usize {
    let golden = Golden::open("max_accumulation");
    let cases = golden.cases();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let uses = case["reuse"].as_u64().expect("a number") as usize;
        let load = |what: &str| exact::<B, 2>(golden.data(&format!("{name}/{what}")));
        let state = |what: &str| exact::<B, 1>(golden.data(&format!("{name}/{what}")));
        let (scale, history) =
            (state("scale").require_grad(), state("amax_history").require_grad());
        let (op, format): (fn(_, _, _, _) -> _, _) = match case["op"].as_str() {
            Some("in_qdq") => (in_qdq::<B, 2>, Fp8Format::E4M3),
            Some("out_qdq") => (out_qdq::<B, 2>, Fp8Format::E5M2),
            other => panic!("no operation {other:?}"),
        };
        let mut xs = vec![];
        let mut loss: Option<Tensor<B, 1>> = None;
        for index in 0..uses {
            let mut x = load(&format!("x{index}"));
            if inputs == Inputs::Tracked {
                x = x.require_grad();
            }
            xs.push(x.clone());
            let options = QdqOptions::new(format);
            let mut y = op(x, scale.clone(), history.clone(), options);
            let shallow = match order {
                Order::Forward => index,
                Order::Backward => uses - index,
            };
            // Exact, and deeper: a later place in the graph.
            for _ in 0..shallow {
                y = y * 1.0;
            }
            let term = (y * load(&format!("g{index}"))).sum();
            loss = Some(match loss {
                Some(loss) => loss + term,
                None => term,
            });
        }
        let grads = loss.expect("at least one use").backward();
        let expect = |what: &str| golden.data(&format!("{name}/max/{what}"));
        let new = |state: &Tensor<B, 1>| state.grad(&grads).expect("a new value");
        assert_same(new(&scale), &expect("scale"), &format!("{name} {order:?} {inputs:?} scale"));
        // The golden file has, for contrast, what plain addition would give.
        let sum = golden.data(&format!("{name}/sum/scale"));
        assert_ne!(values(new(&scale)), sum.to_vec::<f32>().expect("f32"), "{name}: a sum");
        let what = format!("{name} {order:?} {inputs:?} history");
        assert_same(new(&history), &expect("amax_history"), &what);
        for (index, x) in xs.iter().enumerate() {
            assert_eq!(x.grad(&grads).is_some(), inputs == Inputs::Tracked);
            if let Some(dx) = x.grad(&grads) {
                assert_same(dx, &expect(&format!("dx{index}")), &format!("{name} dx{index}"));
            }
        }
    }
    cases.len()
}

#[test]
fn golden_cases_in_either_order_with_and_without_tracked_inputs() {
    for order in [Order::Forward, Order::Backward] {
        for inputs in [Inputs::Tracked, Inputs::Untracked] {
            assert_eq!(golden_cases::<B>(order, inputs), 9);
            assert_eq!(golden_cases::<Outer<Flex>>(order, inputs), 9);
            assert_eq!(golden_cases::<Autodiff<Flex, BalancedCheckpointing>>(order, inputs), 9);
            #[cfg(feature = "ndarray")]
            assert_eq!(golden_cases::<Autodiff<burn::backend::NdArray>>(order, inputs), 9);
        }
    }
}

fn fresh_state() -> (Tensor<B, 1>, Tensor<B, 1>) {
    let device = Default::default();
    (Tensor::ones([1], &device).require_grad(), Tensor::zeros([3], &device).require_grad())
}

/// The documented example: x = 2, y = 3.
#[test]
fn reused_state_takes_the_maximum() {
    let device = Default::default();
    let options = QdqOptions::new(Fp8Format::E4M3);
    for inputs in [[2.0], [3.0]].into_iter().zip([[3.0], [2.0]]) {
        let (scale, history) = fresh_state();
        let [x, y] = [inputs.0, inputs.1].map(|input| {
            let input = Tensor::<B, 1>::from_floats(input, &device);
            in_qdq(input, scale.clone(), history.clone(), options)
        });
        let grads = (x * y).backward();
        assert_eq!(values(scale.grad(&grads).unwrap()), [1.0]);
        assert_eq!(values(history.grad(&grads).unwrap()), [3.0, 0.0, 0.0]);
    }
}

#[test]
fn a_use_that_never_ran_leaves_no_trace() {
    let device = Default::default();
    let options = QdqOptions::new(Fp8Format::E4M3);
    let (scale, history) = fresh_state();
    let x = Tensor::<B, 1>::from_floats([2.0], &device);
    let used = in_qdq(x.clone(), scale.clone(), history.clone(), options);
    let unused = in_qdq(x * 100.0, scale.clone(), history.clone(), options);
    let grads = used.backward();
    assert_eq!(values(history.grad(&grads).unwrap()), [2.0, 0.0, 0.0]);
    drop(unused);

    let (other_scale, other_history) = fresh_state();
    assert!(other_scale.grad(&grads).is_none() && other_history.grad(&grads).is_none());
}

#[test]
fn untracked_state_works_and_receives_nothing() {
    let device = Default::default();
    let x = Tensor::<B, 1>::from_floats([2.0, 3.3], &device).require_grad();
    let scale = Tensor::<B, 1>::ones([1], &device);
    let history = Tensor::<B, 1>::from_floats([448.0], &device);
    let options = QdqOptions::new(Fp8Format::E4M3);
    let y = in_qdq(x.clone(), scale.clone(), history.clone(), options);
    assert_eq!(values(y.clone()), [2.0, 3.25]);
    let grads = y.backward();
    assert_eq!(values(x.grad(&grads).unwrap()), [1.0, 1.0]);
    assert!(scale.grad(&grads).is_none() && history.grad(&grads).is_none());
}

#[test]
fn state_that_is_no_leaf_is_refused() {
    let (scale, history) = fresh_state();
    let x = Tensor::<B, 1>::ones([2], &Default::default());
    let options = QdqOptions::new(Fp8Format::E4M3);
    for op in [in_qdq::<B, 1>, out_qdq::<B, 1>] {
        let message = panic_of(|| op(x.clone(), scale.clone() * 1.0, history.clone(), options));
        assert!(message.contains("must be a leaf"), "{message}");
        let message = panic_of(|| op(x.clone(), scale.clone(), history.clone() * 1.0, options));
        assert!(message.contains("must be a leaf"), "{message}");
    }
    // A computed tensor that is not tracked is no leaf's child.
    let y = in_qdq(x, scale.detach().set_require_grad(false) * 1.0, history, options);
    assert_eq!(values(y), [1.0, 1.0]);
}

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

fn through_a_clone<A: AutodiffBackend + Fp8Matmul>() {
    let layer = layer::<A>();
    let clone = layer.clone();
    let y = layer.forward(input(2.0)) + clone.forward(input(3.0)) + layer.forward(input(1.0));
    let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
    let layer = sgd::<A>().step(0.1, layer, grads);
    assert_eq!(history(&layer), [3.0, 0.0, 0.0]);
    assert_eq!(values(layer.dot.input.scale.val()), [1.0]);
    // The next step takes its scale from this history: 3 / 448, by Flax's formula.
    let grads = grads_of(&layer, 1.0);
    let layer = sgd::<A>().step(0.1, layer, grads);
    assert_eq!(history(&layer), [1.0, 0.0, 3.0]);
    assert_eq!(values(layer.dot.input.scale.val()), [1.0 / (448.0 / 3.0f32)]);
}

#[test]
fn a_layer_used_through_its_clone_takes_the_maximum() {
    through_a_clone::<B>();
    through_a_clone::<Outer<Flex>>();
    through_a_clone::<common::Inner<Flex>>();
}

#[test]
fn a_layer_that_took_no_part_keeps_its_state() {
    let (one, other) = (layer::<B>(), layer::<B>());
    let trained = [2.0, 3.0].into_iter().fold(other, |other, amax| {
        let grads = grads_of(&other, amax);
        sgd::<B>().step(0.1, other, grads)
    });
    let other = trained;
    let state = |layer: &Fp8Linear<B>| (history(layer), values(layer.dot.input.scale.val()));
    let before = state(&other);
    assert_eq!(before.0, [3.0, 0.0, 2.0]);
    let mut grads = grads_of(&one, 2.0);
    for id in burn::module::list_param_ids(&other) {
        assert!(grads.remove::<Flex, 2>(id).is_none());
    }
    let other = sgd::<B>().step(0.1, other, grads);
    assert_eq!(state(&other), before);
}

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
    let message = panic_of(|| plain.step_multi(0.5, layer.clone(), of_two_devices(&layer)));
    assert!(message.contains("plain optimizer"), "{message}");

    // So is a sum on one of the devices.
    let mut sums = GradientsAccumulator::new();
    for amax in [2.0, 3.0] {
        sums.accumulate(&layer, grads_of(&layer, amax));
    }
    let mut grads = of_two_devices(&layer);
    grads.grads[1].0 = sums.grads();
    let message = panic_of(|| sgd::<B>().step_multi(0.5, layer.clone(), grads));
    assert!(message.contains("accumulated by adding"), "{message}");
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
