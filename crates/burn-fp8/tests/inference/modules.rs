//! Layers for inference as Burn's modules and in its records.

use burn::record::{
    BinFileRecorder, DefaultRecorder, FileRecorder, HalfPrecisionSettings, PrettyJsonFileRecorder,
};
use burn_fp8::nn::frozen::FrozenLinearRecord;
use serde_json::json;

use crate::common::frozen::{Parts, parts, weights};
use crate::common::*;
use ActivationScale::{Current, Static};

/// Layers in a module of Burn's, for any backend: with one scale, and with scales of rows and blocks.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: FrozenLinear<B>,
    second: Option<FrozenLinear<B>>,
    others: Vec<FrozenLinear<B>>,
}

fn model<B: Fp8Matmul>(seed: u64) -> Model<B> {
    let layer = |weight, activation| {
        FrozenLinear::from_tensor(weight, Some(random(seed, [5])), activation).expect("a layer")
    };
    let mut weights = weights(seed, [6, 5]).into_iter().map(|(weight, _)| weight);
    let mut next = || weights.next().expect("some are left");
    let first = layer(next(), Static(0.25));
    // A record keeps codes that no checkpoint may have.
    let mut numbers = Random(seed).spread(15);
    numbers[7] = f32::NAN;
    let second = FrozenLinear::from_weight(tensor(&numbers, [5, 3]), None, Current);
    let second = Some(second.expect("finite elements"));
    let others = weights.map(|weight| layer(weight, ActivationScale::PerToken)).collect();
    Model { first, second, others }
}

fn all<B: Backend>(model: &Model<B>) -> Vec<Parts> {
    [&model.first].into_iter().chain(&model.second).chain(&model.others).map(parts).collect()
}

fn recorder_keeps<B: Fp8Matmul, R: FileRecorder<B>>(recorder: &R) {
    let (_folder, path) = files::path("model");
    let saved = model::<B>(1);
    saved.clone().save_file(&path, recorder).expect("written");
    let loaded = model::<B>(2).load_file(&path, recorder, &Default::default()).expect("read");
    assert_eq!(all(&loaded), all(&saved));
}

#[test]
fn recorders_keep_a_model() {
    recorder_keeps::<Flex, _>(&DefaultRecorder::new());
    recorder_keeps::<Flex, _>(&BinFileRecorder::<HalfPrecisionSettings>::new());
    recorder_keeps::<Flex, _>(&PrettyJsonFileRecorder::<FullPrecisionSettings>::new());
    recorder_keeps::<Outer<Flex>, _>(&DefaultRecorder::new());
    #[cfg(feature = "ndarray")]
    recorder_keeps::<burn::backend::NdArray, _>(&DefaultRecorder::new());
}

#[test]
fn recorders_keep_one_byte_an_element_and_check_what_they_read() {
    let (_folder, path) = files::path("layer");
    let recorder = BinFileRecorder::<FullPrecisionSettings>::new();
    let layer = FrozenLinear::from_weight(random::<Flex, 2>(11, [100, 100]), None, Static(0.25));
    layer.expect("a layer").save_file(&path, &recorder).expect("written");
    let path = path.with_extension("bin");
    let mut bytes = std::fs::read(&path).expect("there");
    assert!((10_000..10_300).contains(&bytes.len()), "{}", bytes.len());
    // The scale of the input made negative.
    let scale = 0.25f32.to_le_bytes();
    let at = bytes.windows(4).rposition(|window| window == scale).expect("in there");
    bytes[at + 3] |= 0x80;
    std::fs::write(&path, &bytes).expect("writable");
    let loaded: Result<FrozenLinearRecord, _> =
        Recorder::<Flex>::load(&recorder, path, &Default::default());
    refused(loaded, ["input_scale is -2.5e-1"]);
}

/// A record from a file is what a layer can be, else an error says why not.
#[test]
fn records_that_are_no_layer_are_refused_with_the_reason() {
    let (weight, bias) = (random::<Flex, 2>(12, [2, 3]), random(13, [3]));
    let layer = FrozenLinear::from_weight(weight, Some(bias), Static(0.125)).expect("a layer");
    let good = serde_json::to_value(layer.to_record()).expect("serializes");
    let read = |record| serde_json::from_value::<FrozenLinearRecord>(record);
    read(good.clone()).expect("as it was written");
    // What JSON has not.
    let mut cases = vec![
        (json!({ "codes": [56, 56] }), "2 codes for a weight [2, 3]"),
        (json!({ "d_input": 0, "codes": [] }), "has no elements"),
        (json!({ "d_input": u64::MAX, "codes": [] }), "codes for a weight"),
        (json!({ "bias": [1.0, 2.0] }), "a bias of 2 elements for 3 outputs"),
        (json!({ "codes": [0x7f, 0xff, 0x7f, 0x7f, 0x7f, 0x7f] }), "no element of the weight"),
        (json!({ "block": [0, 4] }), "blocks 0×4 have no elements"),
        (json!({ "block": [1, 2], "scales": [1.0] }), "1 scales for a grid of 4 blocks"),
        (json!({ "scales": [1.0] }), "1 scales for a grid of 0 blocks"),
        (json!({ "block": [2, 3], "scales": [-1.0] }), "a scale of the weight is -1e0"),
        (json!({ "block": [2, 3], "scales": [1e39] }), "a scale of the weight is inf"),
        (json!({ "activation": { "blocks": { "size": 0, "power_of_two": false } } }), ""),
        (json!({ "activation": { "static": -1.0 } }), "input_scale is"),
        (json!({ "of_another": 1 }), "unknown field `of_another`"),
    ];
    for bad in [0.0, -1.0, 1e39, 1e-40] {
        cases.push((json!({ "weight_scale": bad }), "weight_scale is"));
        cases.push((json!({ "input_scale": bad }), "input_scale is"));
    }
    for (damage, expected) in cases {
        let mut record = good.clone();
        let fields = damage.as_object().expect("fields").clone();
        record.as_object_mut().expect("fields").extend(fields);
        refused(read(record), [expected]);
    }
}

#[test]
fn a_model_moves_and_goes_to_autodiff_and_back() {
    let inner = model::<Flex>(3);
    let outer: Model<Autodiff<Flex>> = inner.clone().train();
    assert_eq!(all(&outer.valid()), all(&inner));
    says(&outer, ["d_input: 6", "E4M3"]);
    assert_eq!(all(&inner.clone().to_device(&Default::default())), all(&inner));
    assert_eq!(all(&inner.clone().fork(&Default::default())), all(&inner));
    let outer = model::<Outer<Flex>>(3).valid();
    assert_eq!(
        values(outer.first.forward(random::<_, 2>(1, [2, 6]))),
        values(inner.first.forward(random::<_, 2>(1, [2, 6])))
    );
}

/// An optimizer that could move every float of a model leaves a frozen layer as it is.
#[test]
fn training_around_a_frozen_layer_leaves_it_as_it_is() {
    #[derive(Module, Debug)]
    struct Head<B: Backend> {
        frozen: FrozenLinear<B>,
        head: Linear<B>,
    }
    type B = Outer<Flex>;
    let frozen = FrozenLinear::from_weight(random::<B, 2>(13, [16, 16]), None, Current);
    let head = LinearConfig::new(16, 16).init::<B>(&Default::default());
    let mut model = Head { frozen: frozen.expect("a layer"), head };
    let before = (parts(&model.frozen), values(model.head.weight.val()));
    let mut optimizer = AdamConfig::new().init();
    for _ in 0..2 {
        let y = model.head.forward(model.frozen.forward(random::<B, 2>(14, [16, 16])));
        let grads = GradientsParams::from_grads(y.powf_scalar(2.0).mean().backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
    assert_eq!(parts(&model.frozen), before.0);
    assert_ne!(values(model.head.weight.val()), before.1);
}
