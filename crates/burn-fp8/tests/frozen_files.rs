//! Layers for inference as Burn's modules, in its records and in files.

mod common;

use std::collections::HashMap;
use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::record::{
    BinFileRecorder, DefaultRecorder, FileRecorder, FullPrecisionSettings, HalfPrecisionSettings,
    PrettyJsonFileRecorder, Recorder,
};
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::nn::ActivationScale::{Current, Static};
use burn_fp8::nn::FrozenLinear;
use burn_fp8::nn::frozen::{load_all, save_all};
use burn_fp8::{Fp8Backend, Fp8Error, Fp8Matmul};
use common::frozen::{layer, parts};
use common::{Random, reference, tensor, values};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

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
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model");
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
    check_recorder::<Fp8Backend<Autodiff<Flex>>, _>(&DefaultRecorder::new());
    #[cfg(feature = "ndarray")]
    check_recorder::<burn::backend::NdArray, _>(&DefaultRecorder::new());
}

#[test]
fn recorders_keep_one_byte_an_element_and_check_what_they_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("layer");
    let recorder = BinFileRecorder::<FullPrecisionSettings>::new();
    let (layer, ..) = layer::<Flex>(&mut Random(11), [100, 100], Static(0.25));
    layer.clone().save_file(&path, &recorder).expect("written");
    let path = path.with_extension("bin");
    let bytes = std::fs::read(&path).expect("there");
    assert!((10_400..10_700).contains(&bytes.len()), "{}", bytes.len());
    // The scale of the input made negative.
    let scale = 0.25f32.to_le_bytes();
    let at = bytes.windows(4).rposition(|window| window == scale).expect("in there");
    let mut bytes = bytes;
    bytes[at + 3] |= 0x80;
    std::fs::write(&path, &bytes).expect("writable");
    let load = Recorder::<Flex>::load(&recorder, path, &Default::default());
    let loaded: Result<burn_fp8::nn::frozen::FrozenLinearRecord, _> = load;
    let error = loaded.expect_err("refused").to_string();
    assert!(error.contains("input_scale is -2.5e-1"), "{error}");
}

#[test]
fn a_model_goes_to_autodiff_and_back() {
    let inner = model::<Flex>(3);
    let outer: Model<Autodiff<Flex>> = inner.clone().train();
    let back = outer.valid();
    assert_eq!(parts(&back.first), parts(&inner.first));
    let shown = format!("{outer}");
    assert!(shown.contains("d_input: 6") && shown.contains("E4M3"), "{shown}");
    let (outer, x) = (model::<Fp8Backend<Autodiff<Flex>>>(3), [0.5, 1.0, -2.0, 0.1, 7.0, 3.0]);
    assert_eq!(
        values(outer.valid().first.forward(tensor::<Fp8Backend<Flex>, 1>(&x, [6]))),
        values(inner.first.forward(tensor::<Flex, 1>(&x, [6])))
    );
}

fn check_files<B: Fp8Matmul>() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("layer.safetensors");
    let device = Default::default();
    let Model { first, second } = model::<B>(4);
    let second = second.expect("there").with_activation(Static(0.5)).expect("good");
    let third = FrozenLinear::<B>::from_weight(tensor(&[1.0, f32::NAN], [1, 2]), None, Current);
    let third = third.expect("good");
    for layer in [&first, &second, &third] {
        layer.save(&path).expect("written");
        let loaded = FrozenLinear::<B>::load(&path, &device).expect("read");
        assert_eq!(parts(&loaded), parts(layer));
    }
    let layers = [("fc1", &first), ("block.0.weight", &second), ("block.0", &third)];
    save_all(&path, layers).expect("written");
    let loaded = load_all::<B>(&path, &device).expect("read");
    assert_eq!(loaded.len(), 3);
    for (name, layer) in layers {
        assert_eq!(parts(&loaded[name]), parts(layer), "{name}");
    }
    let error = FrozenLinear::<B>::load(&path, &device).unwrap_err().to_string();
    assert!(error.contains("`block.0`, `block.0.weight`, `fc1`"), "{error}");
    let error = save_all(&path, [("a", &first), ("a", &first)]).unwrap_err().to_string();
    assert!(error.contains("two layers have the name `a`"), "{error}");
    assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 1, "nothing left beside");
}

#[test]
fn files_keep_layers() {
    check_files::<Flex>();
    check_files::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_files::<burn::backend::NdArray>();
}

#[test]
fn files_have_the_documented_tensors() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.safetensors");
    let (layer, weight, bias) = layer::<Flex>(&mut Random(12), [3, 2], Static(0.125));
    save_all(&path, [("fc", &layer)]).expect("written");
    let bytes = std::fs::read(&path).expect("there");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let get = |name: &str| file.tensor(name).expect("there");
    let view = get("fc.weight");
    assert_eq!((view.dtype(), view.shape()), (Dtype::F8_E4M3, &[3, 2][..]));
    let scale = reference::scale(&weight, E4M3);
    let codes = weight.iter().map(|w| E4M3.encode(w / scale, Default::default()));
    assert_eq!(view.data(), codes.collect::<Vec<_>>());
    for (name, numbers) in
        [("fc.weight_scale", vec![scale]), ("fc.input_scale", vec![0.125]), ("fc.bias", bias)]
    {
        let bytes: Vec<_> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!((get(name).dtype(), get(name).data()), (Dtype::F32, &bytes[..]), "{name}");
    }
    assert_eq!(file.len(), 4);
}

/// A file with these tensors, and metadata where there are some.
fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)], metadata: &[(&str, &str)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("consistent"))
    });
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let bytes = safetensors::serialize(views, Some(metadata)).expect("consistent");
    std::fs::write(path, bytes).expect("writable");
}

#[test]
fn damaged_and_foreign_files_are_refused_with_the_reason() {
    const GOOD: &[(&str, &str)] = &[("format", "burn-fp8 frozen layers"), ("version", "1")];
    const F8: Dtype = Dtype::F8_E4M3;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("layer.safetensors");
    let f32s = |numbers: &[f32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let refused = |expected: &str| {
        let error = FrozenLinear::<Flex>::load(&path, &Default::default()).unwrap_err();
        assert!(matches!(error, Fp8Error::InvalidState { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(expected) && message.contains("layer.safetensors"), "{message}");
        assert!(
            load_all::<Flex>(&path, &Default::default()).is_err() || expected.contains("it holds")
        );
    };
    let weight = || ("weight", F8, &[2, 3][..], vec![0x38; 6]);
    let scale = || ("weight_scale", Dtype::F32, &[1][..], f32s(&[0.5]));

    write(&path, &[weight(), scale()], GOOD);
    FrozenLinear::<Flex>::load(&path, &Default::default()).expect("good as it is");
    let whole = std::fs::read(&path).expect("there");
    for len in [0, 7, 8, 60, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).expect("writable");
        refused("not a complete safetensors file");
    }
    std::fs::write(&path, b"{\"weight\": 1}, not a safetensors file at all").expect("writable");
    refused("not a complete safetensors file");

    write(&path, &[weight(), scale()], &[]);
    refused("metadata does not say `format`");
    write(&path, &[weight(), scale()], &[("format", "burn-fp8 delayed state"), ("version", "1")]);
    refused("metadata does not say `format`");
    write(&path, &[weight(), scale()], &[GOOD[0], ("version", "2")]);
    refused("it has version 2; this burn-fp8 reads 1");
    write(&path, &[], GOOD);
    let error = FrozenLinear::<Flex>::load(&path, &Default::default()).unwrap_err().to_string();
    assert!(error.contains("it holds no layer"), "{error}");

    write(&path, &[weight()], GOOD);
    refused("it has no `weight_scale`");
    write(&path, &[("fc.weight", F8, &[2, 3], vec![0; 6])], GOOD);
    refused("it has no `fc.weight_scale`");
    write(&path, &[scale()], GOOD);
    refused("it has `weight_scale`, which belongs to no layer");
    write(&path, &[weight(), scale(), ("norm", Dtype::F32, &[1], f32s(&[1.0]))], GOOD);
    refused("it has `norm`, which belongs to no layer");

    for (dtype, size) in [(Dtype::F8_E5M2, 6), (Dtype::U8, 6), (Dtype::F32, 24)] {
        write(&path, &[("weight", dtype, &[2, 3], vec![0; size]), scale()], GOOD);
        refused("not F8_E4M3 [d_input, d_output]");
    }
    for shape in [&[6][..], &[1, 2, 3], &[]] {
        let bytes = vec![0; shape.iter().product()];
        write(&path, &[("weight", F8, shape, bytes), scale()], GOOD);
        refused("not F8_E4M3 [d_input, d_output]");
    }
    for shape in [&[0, 3][..], &[usize::MAX, 0]] {
        write(&path, &[("weight", F8, shape, vec![]), scale()], GOOD);
        refused("has no elements");
    }
    for (dtype, shape, bytes) in [
        (Dtype::F32, &[2][..], f32s(&[1.0, 1.0])),
        (Dtype::F32, &[], f32s(&[1.0])),
        (Dtype::F64, &[1], vec![0; 8]),
        (Dtype::F32, &[0], vec![]),
    ] {
        write(&path, &[weight(), ("weight_scale", dtype, shape, bytes.clone())], GOOD);
        refused("not F32 [1]");
        write(&path, &[weight(), scale(), ("input_scale", dtype, shape, bytes)], GOOD);
        refused("`input_scale` is");
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        write(&path, &[weight(), ("weight_scale", Dtype::F32, &[1], f32s(&[bad]))], GOOD);
        refused("weight_scale is");
        let input = ("input_scale", Dtype::F32, &[1][..], f32s(&[bad]));
        write(&path, &[weight(), scale(), input], GOOD);
        refused("input_scale is");
    }
    write(&path, &[weight(), scale(), ("bias", Dtype::F32, &[2], f32s(&[1.0, 2.0]))], GOOD);
    refused("`bias` is F32 [2], not F32 [3]");
    write(
        &path,
        &[("weight", F8, &[2, 3], vec![0x7f, 0xff, 0x7f, 0x7f, 0x7f, 0x7f]), scale()],
        GOOD,
    );
    refused("`weight`: no element of the weight [2, 3] is finite");
    let nothing = f32s(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    write(&path, &[weight(), scale(), ("bias", Dtype::F32, &[3], nothing)], GOOD);
    refused("`weight`: no element of the bias [3] is finite");

    std::fs::remove_file(&path).expect("there");
    let error = FrozenLinear::<Flex>::load(&path, &Default::default()).unwrap_err();
    assert!(matches!(error, Fp8Error::Io { action: "read", .. }), "{error:?}");
}

/// An optimizer that could move every float of a model leaves a frozen layer as it is.
#[test]
fn training_around_a_frozen_layer_leaves_it_as_it_is() {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdamConfig, GradientsParams, Optimizer};

    #[derive(Module, Debug)]
    struct Head<B: Backend> {
        frozen: FrozenLinear<B>,
        head: Linear<B>,
    }
    type B = Fp8Backend<Autodiff<Flex>>;
    let device = Default::default();
    let frozen = layer::<B>(&mut Random(13), [16, 16], Current).0;
    let before = parts(&frozen);
    let head = LinearConfig::new(16, 16).init::<B>(&device);
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
