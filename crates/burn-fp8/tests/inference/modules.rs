//! Layers for inference as Burn's modules and in its records.

use burn::record::{
    BinFileRecorder, DefaultRecorder, FileRecorder, HalfPrecisionSettings, PrettyJsonFileRecorder,
};
use burn_fp8::nn::ActivationScale::{Current, Static};
use burn_fp8::nn::frozen::FrozenLinearRecord;

use crate::common::frozen::{layer, parts};
use crate::common::*;

/// Two layers in a module of Burn's, for any backend.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: FrozenLinear<B>,
    second: Option<FrozenLinear<B>>,
}

fn model<B: Fp8Matmul>(seed: u64) -> Model<B> {
    let mut random = Random(seed);
    let first = layer(&mut random, [6, 5], Static(0.25)).0;
    Model { first, second: Some(layer(&mut random, [5, 3], Current).0) }
}

fn check_recorder<B: Fp8Matmul, R: FileRecorder<B>>(recorder: &R) {
    let (_folder, path) = files::path("model");
    let saved = model::<B>(1);
    saved.clone().save_file(&path, recorder).expect("written");
    let loaded = model::<B>(2).load_file(&path, recorder, &Default::default()).expect("read");
    assert_eq!(parts(&loaded.first), parts(&saved.first));
    let (loaded, saved) = (loaded.second.expect("there"), saved.second.expect("there"));
    assert_eq!(parts(&loaded), parts(&saved));
}

#[test]
fn recorders_keep_a_model() {
    check_recorder::<Flex, _>(&DefaultRecorder::new());
    check_recorder::<Flex, _>(&BinFileRecorder::<HalfPrecisionSettings>::new());
    check_recorder::<Flex, _>(&PrettyJsonFileRecorder::<FullPrecisionSettings>::new());
    check_recorder::<Outer<Flex>, _>(&DefaultRecorder::new());
    #[cfg(feature = "ndarray")]
    check_recorder::<burn::backend::NdArray, _>(&DefaultRecorder::new());
}

#[test]
fn recorders_keep_one_byte_an_element_and_check_what_they_read() {
    let (_folder, path) = files::path("layer");
    let recorder = BinFileRecorder::<FullPrecisionSettings>::new();
    let (layer, ..) = layer::<Flex>(&mut Random(11), [100, 100], Static(0.25));
    layer.save_file(&path, &recorder).expect("written");
    let path = path.with_extension("bin");
    let mut bytes = std::fs::read(&path).expect("there");
    assert!((10_400..10_700).contains(&bytes.len()), "{}", bytes.len());
    // The scale of the input made negative.
    let scale = 0.25f32.to_le_bytes();
    let at = bytes.windows(4).rposition(|window| window == scale).expect("in there");
    bytes[at + 3] |= 0x80;
    std::fs::write(&path, &bytes).expect("writable");
    let loaded: Result<FrozenLinearRecord, _> =
        Recorder::<Flex>::load(&recorder, path, &Default::default());
    refused(loaded, ["input_scale is -2.5e-1"]);
}

#[test]
fn a_model_goes_to_autodiff_and_back() {
    let inner = model::<Flex>(3);
    let outer: Model<Autodiff<Flex>> = inner.clone().train();
    assert_eq!(parts(&outer.valid().first), parts(&inner.first));
    says(&outer, ["d_input: 6", "E4M3"]);
    let (outer, x) = (model::<Outer<Flex>>(3), [0.5, 1.0, -2.0, 0.1, 7.0, 3.0]);
    assert_eq!(
        values(outer.valid().first.forward(tensor::<Fp8Backend<Flex>, 1>(&x, [6]))),
        values(inner.first.forward(tensor::<Flex, 1>(&x, [6])))
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
    let frozen = layer::<B>(&mut Random(13), [16, 16], Current).0;
    let before = parts(&frozen);
    let head = LinearConfig::new(16, 16).init::<B>(&Default::default());
    let weight = values(head.weight.val());
    let mut model = Head { frozen, head };
    let mut optimizer = AdamConfig::new().init();
    let x = tensor::<B, 2>(&Random(14).spread(16 * 16), [16, 16]);
    for _ in 0..2 {
        let loss = model.head.forward(model.frozen.forward(x.clone())).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
    assert_eq!(parts(&model.frozen), before);
    assert_ne!(values(model.head.weight.val()), weight);
}
