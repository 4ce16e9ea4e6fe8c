//! Records of FP8 layers and of their optimizer: exchanged with plain layers, exact in any precision, resumed to the bit.

use burn::nn::LinearLayout;
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder, PrettyJsonFileRecorder, Record};
use burn_fp8::nn::{Fp8State, Fp8StateRecord};

use crate::common::delayed::{product_of, under};
use crate::common::models::{Fp8Net, dot, fp8_net, initialized, net, parameters, state, step};
use crate::common::*;

type B = Autodiff<Flex>;
type Named = NamedMpkBytesRecorder<FullPrecisionSettings>;
type Binary = BinBytesRecorder<FullPrecisionSettings>;

/// A record through the bytes of another one, which it has to be able to read.
fn through<B: Backend, R, From: Record<B>, To: Record<B>>(record: From) -> To
where
    R: Recorder<B, RecordArgs = (), RecordOutput = Vec<u8>, LoadArgs = Vec<u8>>,
{
    let bytes = R::default().record(record, ()).expect("it can be recorded");
    R::default().load(bytes, &Default::default()).expect("it loads")
}

fn weights(module: &impl Module<B>) -> Vec<(String, Vec<u32>)> {
    parameters(module).into_iter().filter(|(name, _)| !name.contains("dot")).collect()
}

fn train(net: Fp8Net<B>, seed: u64) -> Fp8Net<B> {
    step(net, &mut Fp8Optimizer::new(SgdConfig::new().init()), seed)
}

#[test]
fn parameters_have_their_names_in_a_model() {
    let names: Vec<_> = parameters(&fp8_net::<Flex>()).into_iter().map(|(name, _)| name).collect();
    let second: Vec<_> = names.iter().filter_map(|name| name.strip_prefix("second.")).collect();
    let dots = ["input", "kernel", "output_grad"].map(|of| format!("dot.{of}"));
    let dots = dots.map(|dot| [format!("{dot}.scale"), format!("{dot}.amax_history")]).concat();
    assert_eq!(second, [vec!["weight".to_owned()], dots].concat());
    // State is no parameter of the model: 6·5 + 5 + 5·3.
    assert_eq!(fp8_net::<Flex>().num_params(), 50);
    let layer: Fp8Linear<Flex> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    assert_eq!(layer.to_string(), "Fp8Linear {d_input: 6, d_output: 5, bias: true, params: 35}");
}

#[test]
fn records_of_plain_models_load_into_fp8_models_and_back() {
    let plain = net::<B>();
    // State that has seen something stays as it is.
    let trained = train(fp8_net(), 1);
    let before = state(&trained.first.dot.input);
    assert_ne!(before.1, [0.0; 4]);
    let loaded = trained.load_record(through::<B, Named, _, _>(plain.clone().into_record()));
    assert_eq!(state(&loaded.first.dot.input), before);
    assert_eq!(weights(&loaded), parameters(&plain));
    assert_eq!(loaded.first.weight.id, plain.first.weight.id);

    let trained = train(loaded, 2);
    let record = trained.clone().into_record();
    let back = net::<B>().load_record(through::<B, Named, _, _>(record));
    assert_eq!(parameters(&back), weights(&trained));
    assert_ne!(parameters(&back), parameters(&plain));

    // The same in JSON, through serde's own handling of missing fields.
    let (_folder, path) = files::path("model");
    let (recorder, device) =
        (PrettyJsonFileRecorder::<FullPrecisionSettings>::new(), Default::default());
    plain.clone().save_file(&path, &recorder).expect("it can be saved");
    let loaded = fp8_net::<B>().load_file(&path, &recorder, &device).expect("it loads");
    loaded.save_file(&path, &recorder).expect("it can be saved");
    let back = net::<B>().load_file(&path, &recorder, &device).expect("it loads");
    assert_eq!(parameters(&back), parameters(&plain));
}

/// Formats without names: layer by layer. And conversions, which keep ids and mappers as well.
#[test]
fn plain_layers_become_fp8_layers_and_back() {
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let plain: Linear<Flex> =
            initialized(LinearConfig::new(6, 5).with_layout(layout).init(&Default::default()));
        let fresh = || {
            let config = Fp8LinearConfig::new(6, 5).with_layout(layout).with_dot(dot());
            config.init::<Flex>(&Default::default())
        };
        let record = through::<Flex, Binary, _, _>(plain.clone().into_record());
        let loaded = fresh().load_linear_record(record);
        let converted = Fp8Linear::from(plain.clone());
        assert_eq!(converted.dot.input.amax_history.dims(), [1, 1024]);
        let back = Linear::from(converted.clone());
        for weight in [&loaded.weight, &converted.weight, &back.weight] {
            assert_eq!((weight.dims(), weight.id), ([6, 5], plain.weight.id));
            assert_eq!(values(weight.val()), values(plain.weight.val()));
            // What a record holds of a column-major weight is [d_output, d_input].
            let held = if matches!(layout, LinearLayout::Col) { [5, 6] } else { [6, 5] };
            assert_eq!(weight.transform_for_save().dims(), held);
        }
        assert_eq!(back.bias.unwrap().id, plain.bias.unwrap().id);

        // Its own record, with state, in the same layout.
        let record = through::<Flex, Binary, _, _>(loaded.clone().into_record());
        assert_eq!(parameters(&fresh().load_record(record)), parameters(&loaded));
    }
}

/// A scale far below what f16 holds, an amax far above.
#[test]
fn recorders_of_half_precision_keep_the_state() {
    let amax_history = vec![3.3e38, f32::INFINITY, f32::NAN, 1.0e-30];
    let record = Fp8StateRecord { scale: 1.2345678e-20, amax_history };
    let mut net = fp8_net::<B>();
    net.first.dot.kernel = net.first.dot.kernel.load_record(Some(record.clone()));
    for again in [
        through::<B, BinBytesRecorder<HalfPrecisionSettings>, _, _>(net.clone().into_record()),
        through::<B, NamedMpkBytesRecorder<HalfPrecisionSettings>, _, _>(net.into_record()),
    ] {
        let net = fp8_net::<B>().load_record(again);
        let (scale, history) = state(&net.first.dot.kernel);
        assert_eq!(scale.to_bits(), record.scale.to_bits());
        assert_eq!(bits(&history), bits(&record.amax_history));
        assert!(net.first.dot.kernel.scale.is_require_grad());
    }
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
    let trained = DelayedState::new();
    under(&trained, Recipe::delayed(), || product_of::<A>([1.0; 3]));
    assert_eq!(trained.export().sites.len(), 1);

    let sgd = || Fp8Optimizer::new(SgdConfig::new().init::<A, Fp8Net<A>>());
    let record =
        || Optimizer::<Fp8Net<A>, A>::to_record(&sgd().with_delayed_state(trained.clone()));
    let restored = DelayedState::new();
    let fresh = sgd().with_delayed_state(restored.clone());
    let _ = Optimizer::<Fp8Net<A>, A>::load_record(fresh, through::<A, Named, _, _>(record()));
    assert_eq!(restored.export(), trained.export());
    // An optimizer that carries none drops it.
    let plain = Optimizer::<Fp8Net<A>, A>::load_record(sgd(), through::<A, Named, _, _>(record()));
    assert!(plain.delayed_state().is_none());
}
