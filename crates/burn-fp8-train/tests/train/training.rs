//! Loss scaling in training: gradients that vanish in f16, steps that are skipped, runs that are resumed.

use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{MultiGradientsParams, Sgd};
use burn::prelude::DeviceOps as _;
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder};
use burn::tensor::backend::BackendTypes;
use burn_fp8_train::LossScaledOptimizer;
use burn_fp8_train::policy::{DynamicLossScale, LossScale, LossScaleRule};

use crate::common::models::{Fp8Net, batch, fp8_net, net, parameters, state, step as net_step};
use crate::common::*;

type Plain = Autodiff<Flex>;
type Fp8 = Outer<Flex>;

/// `f16` with everything else in f32.
fn f16() -> Policy {
    Policy::new(FloatDType::F32, FloatDType::F16, FloatDType::F32)
}

/// One weight of 1 and the loss 2⁻²⁶·y: its gradient, 2⁻²⁶·x, lies below half of f16's smallest number, 2⁻²⁴, and vanishes.
fn tiny<B: AutodiffBackend>() -> Linear<B> {
    let mut layer = LinearConfig::new(1, 1).with_bias(false).init(&Default::default());
    layer.weight = Param::from_tensor(tensor(&[1.0], [1, 1]));
    layer
}

fn tiny_step<B: AutodiffBackend>(
    layer: Linear<B>,
    policy: &Policy,
    optimizer: &mut LossScaledOptimizer<impl Optimizer<Linear<B>, B>>,
) -> Linear<B> {
    let view = policy.cast_module_to_compute(&layer);
    let y = view.forward(policy.cast_to_compute(tensor(&[1.0], [1, 1])));
    let loss = policy.cast_to_output(y).mul_scalar(2f32.powi(-26)).sum();
    let grads = optimizer.loss_scale().scale(loss).backward();
    let grads = GradientsParams::from_grads(grads, &layer);
    optimizer.step(2f64.powi(20), layer, grads)
}

fn gradients_that_vanish_in_f16_do_not_when_scaled<B: AutodiffBackend>() {
    let train = |policy: Policy, loss_scale: LossScale| {
        let mut optimizer = LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale);
        let layer = (0..4).fold(tiny::<B>(), |layer, _| tiny_step(layer, &policy, &mut optimizer));
        values(layer.weight.val())[0]
    };
    // Four steps of 2^20 · 2^-26.
    let exact = 1.0 - 4.0 * 2f32.powi(-6);
    assert_eq!(train(Policy::uniform(FloatDType::F32), LossScale::none()), exact);
    assert_eq!(train(f16(), LossScale::none()), 1.0, "the gradient has vanished");
    assert_eq!(train(f16(), LossScale::fixed(1024.0).unwrap()), exact);
    assert_eq!(train(f16(), LossScale::dynamic()), exact);
}

tests_on!(plain: super::Plain, [
    gradients_that_vanish_in_f16_do_not_when_scaled,
    the_state_of_fp8_layers_is_neither_divided_nor_taken_from_a_skipped_step,
]);
tests_on!(decorated: super::Fp8, [
    gradients_that_vanish_in_f16_do_not_when_scaled,
    the_state_of_fp8_layers_is_neither_divided_nor_taken_from_a_skipped_step,
]);

/// From a scale that is far too large, a dynamic scale comes down until gradients fit into f16, and training goes on.
#[test]
fn a_dynamic_scale_finds_its_way_down() {
    let rule = DynamicLossScale::default().with_loss_scale(2f32.powi(45));
    let loss_scale = LossScale::new(LossScaleRule::Dynamic(rule)).unwrap();
    let mut optimizer = LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale.clone());
    let mut layer = tiny::<Plain>();
    let mut weights = vec![];
    for _ in 0..8 {
        layer = tiny_step(layer, &f16(), &mut optimizer);
        weights.push(values(layer.weight.val())[0]);
    }
    // 2^-26 · 2^45 .. 2^42 are infinite in f16, which ends below 2^16; 2^41 fits.
    let step = 2f32.powi(-6);
    let stepped = [1.0, 2.0, 3.0, 4.0].map(|steps| 1.0 - steps * step);
    assert_eq!(weights[..4], [1.0; 4]);
    assert_eq!(weights[4..], stepped);
    assert_eq!((loss_scale.loss_scale(), loss_scale.skipped()), (2f32.powi(41), 4));
}

fn loss<B: AutodiffBackend>(model: &Linear<B>, seed: u64) -> Tensor<B, 1> {
    let policy = f16();
    let view = policy.cast_module_to_compute(model);
    let y = view.forward(policy.cast_to_compute(batch(seed)));
    policy.cast_to_output(y).powi_scalar(2).mean()
}

fn step<B: AutodiffBackend, O: Optimizer<Linear<B>, B>>(
    model: Linear<B>,
    optimizer: &mut LossScaledOptimizer<O>,
    seed: u64,
    spoil: f32,
) -> Linear<B> {
    let loss = loss(&model, seed) * spoil;
    let grads = optimizer.loss_scale().scale(loss).backward();
    let grads = GradientsParams::from_grads(grads, &model);
    optimizer.step(0.01, model, grads)
}

fn model<B: AutodiffBackend>() -> Linear<B> {
    net::<B>().first
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_but_the_scale() {
    let constant = LossScale::fixed(64.0).unwrap();
    for (spoil, loss_scale, after) in [
        (f32::INFINITY, dynamic(), 32.0),
        (f32::NAN, dynamic(), 32.0),
        (f32::INFINITY, constant, 64.0),
    ] {
        let mut optimizer = LossScaledOptimizer::new(AdamConfig::new().init(), loss_scale.clone());
        // Adam's moments are there before.
        let model = step(model::<Plain>(), &mut optimizer, 1, 1.0);
        let mut twin = optimizer.clone().into_inner();
        let before = parameters(&model);
        let model = step(model, &mut optimizer, 2, spoil);
        assert_eq!(parameters(&model), before);
        assert_eq!((loss_scale.loss_scale(), loss_scale.skipped()), (after, 1));
        // The next step is the one of an optimizer that has not seen the bad one: the scale is a power of two and changes no bit.
        let good = step(model.clone(), &mut optimizer, 3, 1.0);
        let grads = (loss(&model, 3) * after).backward();
        let grads = GradientsParams::from_grads(grads, &model);
        let grads = LossScale::fixed(after).unwrap().unscale::<Plain, _>(&model, grads);
        let expected = twin.step(0.01, model, grads);
        assert_eq!(parameters(&good), parameters(&expected));
        assert_ne!(parameters(&good), before);
    }
}

#[test]
fn without_loss_scaling_it_is_the_wrapped_optimizer() {
    let mut wrapped = LossScaledOptimizer::new(AdamWConfig::new().init(), LossScale::none());
    let mut plain = AdamWConfig::new().init();
    let (mut one, mut other) = (model::<Plain>(), None);
    for seed in 0..3 {
        let before = other.unwrap_or_else(|| one.clone());
        let grads = GradientsParams::from_grads(loss(&before, seed).backward(), &before);
        other = Some(plain.step(0.01, before, grads));
        one = step(one, &mut wrapped, seed, 1.0);
    }
    assert_eq!(parameters(&one), parameters(other.as_ref().expect("three steps")));
    // It steps whatever it gets, too.
    let one = step(one, &mut wrapped, 4, f32::NAN);
    assert!(values(one.weight.val()).iter().all(|weight| weight.is_nan()));
    assert_eq!(wrapped.loss_scale().skipped(), 0);
}

#[test]
fn micro_batches_accumulate_scaled_gradients() {
    let loss_scale = LossScale::fixed(256.0).unwrap();
    let model = model::<Plain>();
    let stepped = [loss_scale, LossScale::none()].map(|loss_scale| {
        let mut accumulator = GradientsAccumulator::new();
        for seed in 0..3 {
            // In f32, where a power of two changes no bit.
            let y = model.forward(batch(seed));
            let grads = loss_scale.scale(y.powi_scalar(2).mean()).backward();
            accumulator.accumulate(&model, GradientsParams::from_grads(grads, &model));
        }
        let mut optimizer = LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale);
        parameters(&optimizer.step(0.5, model.clone(), accumulator.grads()))
    });
    assert_eq!(stepped[0], stepped[1]);
    assert_ne!(stepped[0], parameters(&model));
}

#[test]
fn gradients_of_several_devices_are_unscaled_and_checked_together() {
    let device = <Flex as BackendTypes>::Device::default();
    let run = |second: f32| {
        let layer = tiny::<Plain>();
        let grads = [3.0, second].map(|value| {
            let mut grads = GradientsParams::new();
            grads.register(layer.weight.id, tensor::<Flex, 2>(&[value], [1, 1]));
            (grads, device.to_id())
        });
        let loss_scale = LossScale::fixed(4.0).unwrap();
        let mut optimizer = LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale);
        let grads = MultiGradientsParams { grads: grads.into() };
        let layer = optimizer.step_multi(1.0, layer, grads);
        (values(layer.weight.val())[0], optimizer.loss_scale().skipped())
    };
    // 1 - (3 + 5) / 4
    assert_eq!(run(5.0), (-1.0, 0));
    assert_eq!(run(f32::INFINITY), (1.0, 1));
}

fn dynamic() -> LossScale {
    let rule = DynamicLossScale::default().with_loss_scale(64.0).with_period(3);
    LossScale::new(LossScaleRule::Dynamic(rule)).unwrap()
}

/// Nine steps of FP8 layers, of which two are not finite; model and optimizer saved and read into other objects just before the scale grows, or not.
fn run<R>(start: Fp8Net<Fp8>, recorder: Option<R>) -> (Vec<(String, Vec<u32>)>, LossScale)
where
    R: Recorder<Fp8, RecordArgs = (), RecordOutput = Vec<u8>, LoadArgs = Vec<u8>>,
{
    type Net = Fp8Net<Fp8>;
    let new = |loss_scale| {
        LossScaledOptimizer::new(Fp8Optimizer::new(AdamWConfig::new().init()), loss_scale)
    };
    let (mut net, mut optimizer) = (start, new(dynamic()));
    for seed in 0..9 {
        if let (4, Some(recorder)) = (seed, &recorder) {
            let record = Optimizer::<Net, Fp8>::to_record(&optimizer);
            let of_optimizer = recorder.record(record, ()).expect("bytes");
            let of_net = recorder.record(net.into_record(), ()).expect("bytes");
            // Another rule even: the record has it all.
            let record = recorder.load(of_optimizer, &Default::default()).expect("a record");
            optimizer =
                Optimizer::<Net, Fp8>::load_record(new(LossScale::fixed(2.0).unwrap()), record);
            let record = recorder.load(of_net, &Default::default()).expect("a record");
            net = fp8_net().load_record(record);
        }
        let spoil = if [1, 6].contains(&seed) { f32::INFINITY } else { 1.0 };
        let loss = net.forward(batch(seed)).powi_scalar(2).mean() * spoil;
        let grads = optimizer.loss_scale().scale(loss).backward();
        let grads = GradientsParams::from_grads(grads, &net);
        net = optimizer.step(0.01, net, grads);
    }
    (parameters(&net), optimizer.loss_scale().clone())
}

#[test]
fn a_stopped_run_resumes_to_equal_bits() {
    let start = fp8_net::<Fp8>();
    let (whole, scale) = run(start.clone(), None::<BinBytesRecorder<FullPrecisionSettings>>);
    let bin = BinBytesRecorder::<FullPrecisionSettings>::new();
    let named = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let runs = [run(start.clone(), Some(bin)), run(start.clone(), Some(named))];
    for (resumed, resumed_scale) in runs {
        assert_eq!(whole, resumed);
        assert_eq!(scale.export(), resumed_scale.export());
    }
    assert_ne!(whole, parameters(&start));
    // 64, halved, doubled after three good steps, halved; two good steps since.
    let LossScaleRule::Dynamic(rule) = scale.rule() else { panic!("it is dynamic") };
    assert_eq!((rule.loss_scale, rule.counter, scale.skipped()), (32.0, 2, 2));
}

#[test]
fn records_of_half_precision_hold_the_state_in_full() {
    let rule = DynamicLossScale::default().with_loss_scale(2f32.powi(20) + 1.0);
    let new = |loss_scale| LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale);
    let optimizer = new(LossScale::new(LossScaleRule::Dynamic(rule)).unwrap());
    let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::new();
    let record = Optimizer::<Linear<Plain>, Plain>::to_record(&optimizer);
    let bytes = Recorder::<Plain>::record(&recorder, record, ()).expect("bytes");
    let handle = LossScale::none();
    let record = Recorder::<Plain>::load(&recorder, bytes, &Default::default()).expect("a record");
    Optimizer::<Linear<Plain>, Plain>::load_record(new(handle.clone()), record);
    assert_eq!(handle.rule(), LossScaleRule::Dynamic(rule), "the handle shares what was loaded");
}

#[test]
fn records_with_numbers_out_of_range_are_refused() {
    let new = || LossScaledOptimizer::new(SgdConfig::new().init(), dynamic());
    let mut record = Optimizer::<Linear<Plain>, Plain>::to_record(&new());
    record.loss_scale.rule = LossScaleRule::Static(f32::NAN);
    let optimizer = new();
    let handle = optimizer.loss_scale().clone();
    let bytes = {
        let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
        Recorder::<Plain>::record(&recorder, record.clone(), ()).expect("bytes")
    };
    let load = || Optimizer::<Linear<Plain>, Plain>::load_record(optimizer, record);
    panics(load, ["the static loss scale = NaN"]);
    assert_eq!(handle.rule(), dynamic().rule());
    // Out of a file they do not even become a record.
    type Scaled = LossScaledOptimizer<OptimizerAdaptor<Sgd<Flex>, Linear<Plain>, Plain>>;
    type Record = <Scaled as Optimizer<Linear<Plain>, Plain>>::Record;
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let loaded = Recorder::<Plain>::load::<Record>(&recorder, bytes, &Default::default());
    refused(loaded.map(drop), ["the static loss scale = NaN"]);
}

fn the_state_of_fp8_layers_is_neither_divided_nor_taken_from_a_skipped_step<B>()
where
    B: AutodiffBackend + Fp8Matmul,
{
    let loss_scale = LossScale::fixed(1024.0).unwrap();
    let inner = Fp8Optimizer::new(AdamWConfig::new().init());
    let mut optimizer = LossScaledOptimizer::new(inner, loss_scale.clone());
    let mut net = fp8_net::<B>();
    let mut history = vec![];
    for (seed, spoil) in [(1, 1.0), (2, f32::INFINITY), (3, 1.0)] {
        let before = parameters(&net);
        let y = net.forward(batch::<B>(seed));
        let amax = fp8::amax(&values(batch::<B>(seed)));
        let loss = loss_scale.scale(y.powi_scalar(2).mean()) * spoil;
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.01, net, grads);
        match spoil.is_finite() {
            true => history.insert(0, amax),
            false => assert_eq!(parameters(&net), before, "scales and histories too"),
        }
    }
    let (scale, amaxes) = state(&net.first.dot.input);
    // The new values are as they were measured: not divided by the loss scale.
    assert_eq!(amaxes, [history[0], 0.0, 0.0, history[1]]);
    assert!(scale > 0.0 && scale.is_finite());
    assert_eq!(loss_scale.skipped(), 1);
}

/// Flax's layers let an infinite output gradient saturate: the gradients of the weights are finite, only the amax tells.
#[test]
fn an_overflow_that_fp8_layers_hide_is_found_by_its_amax_and_old_ones_are_left_alone() {
    let run = |optimizer: &mut dyn FnMut(Fp8Net<Plain>, GradientsParams) -> Fp8Net<Plain>,
               net: Fp8Net<Plain>,
               factor: f32| {
        let loss = net.forward(batch::<Plain>(1)).sum() * factor;
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        optimizer(net, grads)
    };
    let newest = |net: &Fp8Net<Plain>| state(&net.second.dot.output_grad).1;
    // Without loss scaling the infinite amax enters the history.
    let mut plain = Fp8Optimizer::new(SgdConfig::new().init());
    let net = run(&mut |net, grads| plain.step(0.0, net, grads), fp8_net(), f32::INFINITY);
    assert_eq!(newest(&net), [f32::INFINITY, 0.0, 0.0, 0.0]);
    assert!(parameters(&net).iter().all(|(name, bits)| {
        name.contains("dot") || bits.iter().all(|bits| f32::from_bits(*bits).is_finite())
    }));
    let mut scaled = LossScaledOptimizer::new(plain, LossScale::fixed(2.0).unwrap());
    let net = run(&mut |net, grads| scaled.step(0.0, net, grads), net, f32::INFINITY);
    assert_eq!(newest(&net), [f32::INFINITY, 0.0, 0.0, 0.0], "skipped");
    let net = run(&mut |net, grads| scaled.step(0.0, net, grads), net, 6.0);
    assert_eq!(newest(&net), [6.0, 0.0, 0.0, f32::INFINITY], "the old one skips nothing");
    assert_eq!(scaled.loss_scale().skipped(), 1);
}

#[test]
fn loss_scaling_inside_of_fp8_optimizer_is_stopped() {
    let wrong = || {
        let inner = LossScaledOptimizer::new(SgdConfig::new().init(), dynamic());
        net_step(fp8_net::<Plain>(), &mut Fp8Optimizer::new(inner), 1)
    };
    panics(wrong, ["LossScaledOptimizer::new(Fp8Optimizer::new("]);
    // The panic leaves no trace: the right order works after it. And without scaling either order does.
    let inner = Fp8Optimizer::new(SgdConfig::new().init());
    net_step(fp8_net::<Plain>(), &mut LossScaledOptimizer::new(inner, dynamic()), 1);
    let inner = LossScaledOptimizer::new(SgdConfig::new().init(), LossScale::none());
    net_step(fp8_net::<Plain>(), &mut Fp8Optimizer::new(inner), 1);
}
