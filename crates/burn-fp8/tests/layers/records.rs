//! Records of FP8 layers and of their optimizer: exchanged with plain layers, exact in any precision, resumed to the bit.

use burn::nn::LinearLayout;
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder};
use burn_fp8::nn::{Fp8State, Fp8StateRecord};

use crate::common::delayed::{product_of, under};
use crate::common::models::{Fp8Net, dot, fp8_net, initialized, net, parameters, state, step};
use crate::common::*;

type B = Autodiff<Flex>;

#[test]
fn parameters_have_their_names_in_a_model() {
    let names: Vec<_> = parameters(&fp8_net::<Flex>()).into_iter().map(|(name, _)| name).collect();
    let second: Vec<_> = names.iter().filter(|name| name.starts_with("second")).collect();
    assert_eq!(
        second,
        [
            "second.weight",
            "second.dot.input.scale",
            "second.dot.input.amax_history",
            "second.dot.kernel.scale",
            "second.dot.kernel.amax_history",
            "second.dot.output_grad.scale",
            "second.dot.output_grad.amax_history",
        ]
    );
    // State is no parameter of the model: 6·5 + 5 + 5·3.
    assert_eq!(fp8_net::<Flex>().num_params(), 50);
    let layer: Fp8Linear<Flex> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    assert_eq!(layer.to_string(), "Fp8Linear {d_input: 6, d_output: 5, bias: true, params: 35}");
}

#[test]
fn records_of_plain_models_load_into_fp8_models_and_back() {
    let device = Default::default();
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let plain = net::<B>();
    let bytes = recorder.record(plain.clone().into_record(), ()).expect("it can be recorded");
    // State that has seen something stays as it is.
    let trained = step(fp8_net::<B>(), &mut Fp8Optimizer::new(SgdConfig::new().init()), 1);
    let before = state(&trained.first.dot.input);
    assert_ne!(before.1, [0.0; 4]);
    let loaded = trained.load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(state(&loaded.first.dot.input), before);
    let weights = |named: Vec<(String, Vec<u32>)>| {
        named.into_iter().filter(|(name, _)| !name.contains("dot")).collect::<Vec<_>>()
    };
    assert_eq!(weights(parameters(&loaded)), parameters(&plain));
    assert_eq!(loaded.first.weight.id, plain.first.weight.id);

    let trained = step(loaded, &mut Fp8Optimizer::new(SgdConfig::new().init()), 2);
    let bytes = recorder.record(trained.clone().into_record(), ()).expect("it can be recorded");
    let back = net::<B>().load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(parameters(&back), weights(parameters(&trained)));
    assert_ne!(parameters(&back), parameters(&plain));
}

/// The same in JSON, through serde's own handling of missing fields.
#[test]
fn json_records_of_plain_models_load_into_fp8_models() {
    let (_folder, path) = files::path("model");
    let recorder = burn::record::PrettyJsonFileRecorder::<FullPrecisionSettings>::new();
    let plain = net::<Flex>();
    plain.clone().save_file(&path, &recorder).expect("it can be saved");
    let loaded =
        fp8_net::<Flex>().load_file(&path, &recorder, &Default::default()).expect("it loads");
    assert_eq!(values(loaded.second.weight.val()), values(plain.second.weight.val()));
    loaded.clone().save_file(&path, &recorder).expect("it can be saved");
    let back = net::<Flex>().load_file(&path, &recorder, &Default::default()).expect("it loads");
    assert_eq!(parameters(&back), parameters(&plain));
}

/// Formats without names: layer by layer.
#[test]
fn binary_records_of_plain_layers_load_into_fp8_layers() {
    let device = Default::default();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let plain: Linear<Flex> =
            initialized(LinearConfig::new(6, 5).with_layout(layout).init(&device));
        let bytes = recorder.record(plain.clone().into_record(), ()).expect("it can be recorded");
        let fresh =
            || Fp8LinearConfig::new(6, 5).with_layout(layout).with_dot(dot()).init::<Flex>(&device);
        let layer = fresh().load_linear_record(recorder.load(bytes, &device).expect("it loads"));
        assert_eq!(layer.weight.dims(), [6, 5]);
        assert_eq!(values(layer.weight.val()), values(plain.weight.val()));
        assert_eq!(layer.weight.id, plain.weight.id);

        // Its own record, with state, in the same layout.
        let bytes = recorder.record(layer.clone().into_record(), ()).expect("it can be recorded");
        let again = fresh().load_record(recorder.load(bytes, &device).expect("it loads"));
        assert_eq!(parameters(&again), parameters(&layer));
    }
}

#[test]
fn conversions_keep_parameters_ids_and_mappers() {
    let device = Default::default();
    let config = LinearConfig::new(6, 5).with_layout(LinearLayout::Col);
    let plain: Linear<Flex> = initialized(config.init(&device));
    let layer = Fp8Linear::from(plain.clone());
    assert_eq!(layer.dot.input.amax_history.dims(), [1, 1024]);
    let back = Linear::from(layer.clone());
    for weight in [&layer.weight, &back.weight] {
        assert_eq!(weight.id, plain.weight.id);
        assert_eq!(values(weight.val()), values(plain.weight.val()));
        // What a record holds of a column-major weight is [d_output, d_input].
        assert_eq!(weight.transform_for_save().dims(), [5, 6]);
    }
    assert_eq!(back.bias.unwrap().id, plain.bias.unwrap().id);
}

/// A scale far below what f16 holds, an amax far above.
#[test]
fn recorders_of_half_precision_keep_the_state() {
    let device = Default::default();
    let record = Fp8StateRecord {
        scale: 1.2345678e-20,
        amax_history: vec![3.3e38, f32::INFINITY, f32::NAN, 1.0e-30],
    };
    let mut net = fp8_net::<B>();
    net.first.dot.kernel = net.first.dot.kernel.load_record(Some(record.clone()));
    let check = |net: Fp8Net<B>| {
        let (scale, history) = state(&net.first.dot.kernel);
        assert_eq!(scale.to_bits(), record.scale.to_bits());
        assert_eq!(bits(&history), bits(&record.amax_history));
        assert!(net.first.dot.kernel.scale.is_require_grad());
    };
    let recorder = BinBytesRecorder::<HalfPrecisionSettings>::new();
    let bytes = recorder.record(net.clone().into_record(), ()).expect("it can be recorded");
    check(fp8_net().load_record(recorder.load(bytes, &device).expect("it loads")));
    let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::new();
    let bytes = recorder.record(net.into_record(), ()).expect("it can be recorded");
    check(fp8_net().load_record(recorder.load(bytes, &device).expect("it loads")));
}

#[test]
fn records_that_are_no_state_are_refused() {
    let state = Fp8State::<Flex>::new(2, &Default::default());
    for (scale, amax_history, words) in [
        (1.0, &[0.0; 3][..], "has 3 entries and the layer's has 2"),
        (f32::NAN, &[0.0; 2], "its scale is NaN"),
        (-1.0, &[0.0; 2], "its scale is -1"),
        (1.0, &[0.0, -2.0], "entry 1 of its amax history is -2"),
    ] {
        let record = Fp8StateRecord { scale, amax_history: amax_history.to_vec() };
        panics(|| state.clone().load_record(Some(record)), [words]);
    }
}

/// The record carries the decorator's delayed scaling, where the optimizer is told to.
#[test]
fn the_record_carries_delayed_scaling() {
    type A = Outer<Flex>;
    let device = Default::default();
    let trained = DelayedState::new();
    under(&trained, Recipe::delayed(), || product_of::<A>([1.0; 3]));
    assert_eq!(trained.export().sites.len(), 1);

    let sgd = || SgdConfig::new().init::<A, Fp8Net<A>>();
    let optimizer = Fp8Optimizer::new(sgd()).with_delayed_state(trained.clone());
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let record = Optimizer::<Fp8Net<A>, A>::to_record(&optimizer);
    let bytes = Recorder::<A>::record(&recorder, record, ()).expect("recorded");
    let load = || Recorder::<A>::load(&recorder, bytes.clone(), &device).expect("it loads");

    let restored = DelayedState::new();
    let fresh = Fp8Optimizer::new(sgd()).with_delayed_state(restored.clone());
    let _ = Optimizer::<Fp8Net<A>, A>::load_record(fresh, load());
    assert_eq!(restored.export(), trained.export());
    // An optimizer that carries none drops it.
    let plain = Optimizer::<Fp8Net<A>, A>::load_record(Fp8Optimizer::new(sgd()), load());
    assert!(plain.delayed_state().is_none());
}
