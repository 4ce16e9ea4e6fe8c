//! `Fp8Linear` in a model, and the products without a layer.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_fp8_next::burn_fp8_core::{Filter, Recipe};
use burn_fp8_next::nn::Fp8Linear;
use burn_fp8_next::report::HighPrecision;
use burn_fp8_next::{DelayedState, Fp8Config, high_precision, ops, trace};

use crate::common::*;

/// Two layers of one shape.
#[derive(Module, Debug)]
struct Model {
    hidden: Fp8Linear,
    head: Fp8Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(32, 32).init(device).into();
        Self { hidden: layer(), head: layer() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.hidden.forward(x))
    }
}

fn input(device: &Device) -> Tensor<2> {
    Tensor::random([16, 32], Distribution::Normal(0.0, 1.0), device)
}

#[test]
fn a_layer_is_excepted_by_its_name_and_no_other_of_its_shape_with_it() {
    let device = Device::flex();
    let (model, x) = (Model::new(&device), input(&device));
    let config = Fp8Config::default().except(&model, ["head"]).expect("there is a head");
    let (y, report) = config.scope(|| trace(|| model.forward(x.clone())));
    assert_eq!(report.fp8().count(), 1);
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert!(matches!(reasons[..], [HighPrecision::Off]), "{reasons:?}");

    let hidden = Fp8Config::default().scope(|| model.hidden.forward(x));
    let expected = high_precision(|| model.head.forward(hidden));
    assert_eq!(values(y), values(expected));

    let error = Fp8Config::default().except(&model, ["haed"]).unwrap_err();
    says(error, ["haed", "head.weight"]);
}

#[test]
fn records_of_a_layer_and_of_burns_load_into_each_other() {
    let device = Device::flex();
    let x = input(&device);
    let linear = || -> Linear { LinearConfig::new(32, 8).init(&device) };
    let (plain, layer) = (linear(), Fp8Linear::from(linear()));
    let of = |layer: &Fp8Linear| values(high_precision(|| layer.forward(x.clone())));
    assert_ne!(of(&layer), values(plain.forward(x.clone())));
    let loaded = layer.load_record(plain.clone().into_record());
    assert_eq!(of(&loaded), values(plain.forward(x.clone())));
    let back = linear().load_record(loaded.clone().into_record());
    assert_eq!(values(back.forward(x.clone())), of(&loaded));
}

#[test]
fn high_precision_is_burns_own_product() {
    let device = Device::flex();
    let (a, b) = (input(&device), input(&device).transpose());
    let (y, report) = high_precision(|| trace(|| ops::matmul(a.clone(), b.clone())));
    assert_eq!((report.fp8().count(), values(y)), (0, values(a.clone().matmul(b.clone()))));
    let every = Fp8Config::default().with_filter(Filter::every_matmul());
    let (y, report) = every.scope(|| trace(|| ops::matmul(a.clone(), b.clone())));
    assert_eq!(report.fp8().count(), 1);
    assert_ne!(values(y), values(a.matmul(b)));
}

/// A layer whose forward pass is computed again for the backward pass has the gradients of one whose is not.
#[test]
fn gradient_checkpointing_changes_no_gradient() {
    let spread = |factor: usize, shape: [usize; 2], device: &Device| {
        let value = |index: usize| (index * factor % 101) as f32 / 50.0 - 1.0;
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
        tensor(&values, shape, device)
    };
    let gradients = |device: Device| {
        let layer = |factor| {
            let weight = Param::from_tensor(spread(factor, [32, 32], &device));
            Fp8Linear { weight, bias: None }
        };
        let model = Model { hidden: layer(37), head: layer(53) };
        let loss = model.forward(spread(29, [16, 32], &device)).powi_scalar(2).mean();
        let gradients = ops::backward(loss);
        [&model.hidden, &model.head]
            .map(|layer| values(layer.weight.grad(&gradients).expect("it has one")))
    };
    for recipe in [Recipe::current(), Recipe::delayed(), Recipe::mxfp8()] {
        let config = Fp8Config::default().with_recipe(recipe);
        let device = Device::flex().autodiff();
        let [plain, again] = [device.clone(), device.gradient_checkpointing()]
            .map(|device| config.scope(|| trace(|| gradients(device))));
        assert_eq!((plain.1.fp8().count(), again.1.fp8().count()), (5, 5));
        assert_eq!(plain.0, again.0);
        assert!(plain.0[0].iter().any(|gradient| *gradient != 0.0));
    }
}

#[test]
#[should_panic(expected = "of the shapes [16, 32] and [16, 32] do not multiply")]
fn shapes_that_do_not_multiply_are_named() {
    let x = input(&Device::flex());
    ops::matmul(x.clone(), x);
}

/// Nothing else would end the step: the histories would stay empty, and every product would take current scaling.
#[test]
fn a_backward_pass_under_delayed_scaling_that_ends_no_step_is_refused() {
    let device = Device::flex().autodiff();
    let (model, x, state) = (Model::new(&device), input(&device), DelayedState::new());
    let config = Fp8Config::default().with_recipe(Recipe::delayed());
    let loss = || config.scope(|| model.forward(x.clone()).powi_scalar(2).mean());
    let plain = || state.scope(|| loss().backward());
    says(panic_of(plain), ["ops::backward(loss)"]);
    assert_eq!(state.export().sites.len(), 0);

    state.step(|| loss().backward());
    assert_eq!(state.export().sites.len(), 2);
    state.scope(|| ops::backward(loss()));
    assert_eq!(state.export().sites.len(), 2);
}

/// A record of Burn's, which plain layers load, and the histories beside it: training goes on to the bit.
#[test]
fn a_training_under_delayed_scaling_is_saved_and_goes_on_to_the_bit() {
    let device = Device::flex().autodiff();
    let x = input(&device);
    let config = Fp8Config::default().with_recipe(Recipe::delayed());
    let step = |mut model: Model, state: &DelayedState| {
        let loss = || config.scope(|| model.forward(x.clone()).powi_scalar(2).mean());
        let gradients = state.scope(|| ops::backward(loss()));
        for layer in [&mut model.hidden, &mut model.head] {
            let gradient = layer.weight.grad(&gradients).expect("it has one");
            let descend = |weight: Tensor<2>| weight.inner() - gradient * 3.0;
            layer.weight = layer
                .weight
                .clone()
                .map(|weight| Tensor::from_inner(descend(weight)).require_grad());
        }
        model
    };
    let steps =
        |model: Model, state: &DelayedState| (0..5).fold(model, |model, _| step(model, state));
    let weights = |model: &Model| [&model.hidden, &model.head].map(|l| values(l.weight.val()));

    let state = DelayedState::new();
    let half = steps(Model::new(&device), &state);
    let folder = tempfile::tempdir().expect("a folder");
    let (record, histories) = (folder.path().join("model"), folder.path().join("histories"));
    half.clone().save_file(&record).expect("written");
    state.save(&histories).expect("written");
    let whole = steps(half.clone(), &state);

    let loaded = Model::new(&device).load_file(&record);
    assert_eq!(weights(&loaded), weights(&half));
    let resumed = DelayedState::new();
    resumed.load(&histories).expect("just written");
    assert_eq!(weights(&steps(loaded.clone(), &resumed)), weights(&whole));
    // Without the histories the first steps take current scaling.
    assert_ne!(weights(&steps(loaded, &DelayedState::new())), weights(&whole));

    #[derive(Module, Debug)]
    struct Plain {
        hidden: Linear,
        head: Linear,
    }
    let layer = || LinearConfig::new(32, 32).init(&device);
    let plain = Plain { hidden: layer(), head: layer() }.load_file(&record);
    assert_eq!([&plain.hidden, &plain.head].map(|l| values(l.weight.val())), weights(&half));
}
