//! Layers for inference with weights in FP8.

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
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::nn::frozen::{load_all, save_all};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::{
    Fp8Backend, Fp8Codes, Fp8Error, Fp8Matmul, HighPrecision, ProductKind, high_precision, trace,
};
use common::{Random, assert_close, bits, every_matmul, reference, tensor, values};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use ActivationScale::{Current, Static};

/// A layer with its weight and bias.
fn layer<B: Fp8Matmul>(
    random: &mut Random,
    [k, n]: [usize; 2],
    activation: ActivationScale,
) -> (FrozenLinear<B>, Vec<f32>, Vec<f32>) {
    let (weight, bias) = (random.spread(k * n), random.spread(n));
    let layer =
        FrozenLinear::from_weight(tensor(&weight, [k, n]), Some(tensor(&bias, [n])), activation);
    (layer.expect("a good layer"), weight, bias)
}

/// Quantizes with a given scale and dequantizes.
fn quantize_dequantize(x: &[f32], scale: f32) -> Vec<f64> {
    x.iter().map(|x| reference::round(f64::from(x / scale), E4M3) * f64::from(scale)).collect()
}

/// Every shape and both kinds of scale against sums in f64 of the numbers of the format.
fn check_against_definition<B: Fp8Matmul>() {
    let mut random = Random(1);
    let shapes =
        [[1, 1, 1], [1, 7, 5], [1, 64, 65], [2, 33, 3], [5, 17, 66], [9, 130, 70], [40, 12, 9]];
    for [m, k, n] in shapes {
        for activation in [Current, Static(0.003)] {
            let (layer, weight, bias) = layer::<B>(&mut random, [k, n], activation);
            let x = random.spread(m * k);
            let y = values(layer.forward(tensor::<B, 2>(&x, [m, k])));
            let x = match activation {
                Current => reference::quantize_dequantize(&x, E4M3),
                Static(scale) => quantize_dequantize(&x, scale),
            };
            let weight = reference::quantize_dequantize(&weight, E4M3);
            let (product, magnitude) = reference::matmul(&x, &weight, [m, k, n]);
            for (index, y) in y.iter().enumerate() {
                let expected = product[index] + f64::from(bias[index % n]);
                let size = magnitude[index] + f64::from(bias[index % n].abs());
                let bound = size * (k as f64 + 4.0) * f64::from(f32::EPSILON);
                let error = (f64::from(*y) - expected).abs();
                assert!(
                    error <= bound,
                    "{m}×{k}×{n} {activation:?} [{index}]: {y}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn outputs_are_those_of_the_definition() {
    check_against_definition::<Flex>();
    check_against_definition::<Fp8Backend<Flex>>();
    #[cfg(feature = "ndarray")]
    check_against_definition::<burn::backend::NdArray>();
}

/// Integers with sums that f32 holds: no order of summation can change them, so the paths must agree bit for bit.
fn integers(random: &mut Random, count: usize) -> Vec<f32> {
    let mut values: Vec<_> = (0..count).map(|_| (random.bits() % 15) as f32 - 7.0).collect();
    // The amax makes every scale 1.
    values[0] = 448.0;
    values
}

#[test]
fn a_frozen_layer_is_the_product_of_the_decorator() {
    type B = Fp8Backend<Flex>;
    let mut random = Random(2);
    for [m, k, n] in [[1, 48, 80], [3, 48, 80], [32, 64, 32], [33, 64, 48], [100, 16, 17]] {
        let (x, w) = (integers(&mut random, m * k), integers(&mut random, k * n));
        let (x, w) = (tensor::<B, 2>(&x, [m, k]), tensor::<B, 2>(&w, [k, n]));
        let (dynamic, report) = every_matmul().scope(|| trace(|| x.clone().matmul(w.clone())));
        assert_eq!(report.fp8().count(), 1);
        for activation in [Current, Static(1.0)] {
            let layer = FrozenLinear::from_weight(w.clone(), None, activation).expect("good");
            let (frozen, report) = trace(|| layer.forward(x.clone()));
            assert_eq!(bits(&values(frozen)), bits(&values(dynamic.clone())), "{m}×{k}×{n}");
            assert_eq!(report.products.len(), 1);
        }
    }
}

#[test]
fn backends_hold_the_same_codes_and_decorated_ones_give_the_same_output() {
    let mut random = Random(3);
    let [k, n] = [40, 72];
    let (weight, bias, x) = (random.spread(k * n), random.spread(n), random.spread(6 * k));
    fn run<B: Fp8Matmul>(weight: &[f32], bias: &[f32], x: &[f32]) -> (Vec<u8>, f32, Vec<f32>) {
        let weight = tensor::<B, 2>(weight, [40, 72]);
        // A view is quantized as its copy is.
        let weight = weight.transpose().transpose();
        let layer = FrozenLinear::from_weight(weight, Some(tensor(bias, [72])), Current);
        let layer = layer.expect("a good layer");
        let y = layer.forward(tensor::<B, 2>(x, [6, 40]));
        (layer.codes().to_bytes(), layer.weight_scale(), values(y))
    }
    let flex = run::<Flex>(&weight, &bias, &x);
    assert_eq!(run::<Fp8Backend<Flex>>(&weight, &bias, &x), flex);
    assert_eq!(run::<Autodiff<Flex>>(&weight, &bias, &x), flex);
    assert_eq!(run::<Fp8Backend<Autodiff<Flex>>>(&weight, &bias, &x), flex);
    let codes: Vec<_> =
        weight.iter().map(|w| E4M3.encode(w / flex.1, Default::default())).collect();
    assert_eq!(flex.0, codes);
    #[cfg(feature = "ndarray")]
    {
        let ndarray = run::<burn::backend::NdArray>(&weight, &bias, &x);
        assert_eq!((ndarray.0, ndarray.1), (flex.0, flex.1));
        assert_close(&ndarray.2, &flex.2, 1e-6, "outputs");
    }
}

#[test]
fn a_transposed_weight_is_frozen_as_its_copy() {
    let mut random = Random(4);
    let weight = random.spread(24 * 40);
    let view = tensor::<Flex, 2>(&weight, [40, 24]).transpose();
    let copy = Tensor::<Flex, 2>::from_data(view.to_data(), &Default::default());
    let x = tensor::<Flex, 2>(&random.spread(24), [1, 24]);
    let [view, copy] = [view, copy]
        .map(|weight| FrozenLinear::from_weight(weight, None, Current).expect("a good layer"));
    assert_eq!(view.codes().to_bytes(), copy.codes().to_bytes());
    assert_eq!(values(view.forward(x.clone())), values(copy.forward(x)));
}

fn check_ranks<B: Fp8Matmul>() {
    let mut random = Random(5);
    let (layer, ..) = layer::<B>(&mut random, [12, 10], Static(0.01));
    let x = tensor::<B, 2>(&random.spread(6 * 12), [6, 12]);
    let flat = values(layer.forward(x.clone()));
    let y = layer.forward(x.clone().reshape([2, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([2, 3, 10], flat.clone()));
    let y = layer.forward(x.clone().reshape([1, 2, 1, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([1, 2, 1, 3, 10], flat.clone()));
    // A row by itself is summed in another order.
    let y = layer.forward(x.clone().narrow(0, 2, 1).reshape([12]));
    assert_eq!(y.dims(), [10]);
    assert_close(&values(y), &flat[20..30], 1e-6, "one row");
    let transposed = x.clone().transpose().reshape([12, 6]).transpose();
    assert_eq!(values(layer.forward(transposed)), flat);
    let y = layer.forward(Tensor::<B, 3>::zeros([2, 0, 12], &x.device()));
    assert_eq!(y.dims(), [2, 0, 10]);
}

#[test]
fn inputs_have_any_rank() {
    check_ranks::<Flex>();
    check_ranks::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_ranks::<burn::backend::NdArray>();
}

#[test]
fn outputs_have_the_type_of_the_input() {
    let mut random = Random(6);
    let (layer, ..) = layer::<Flex>(&mut random, [32, 20], Current);
    let x = tensor::<Flex, 2>(&random.spread(3 * 32), [3, 32]);
    for (dtype, tolerance) in [(FloatDType::BF16, 1e-2), (FloatDType::F16, 2e-3)] {
        let x = x.clone().cast(dtype);
        let y = layer.forward(x.clone());
        assert_eq!(y.dtype(), DType::from(dtype));
        let expected = layer.forward(x.cast(FloatDType::F32));
        assert_close(&values(y), &values(expected), tolerance, "output");
    }
    // f64 is not quantized, and says so.
    let (y, report) = trace(|| layer.forward(x.clone().cast(FloatDType::F64)));
    assert_eq!(y.dtype(), DType::F64);
    let (_, reason) = report.high_precision().next().expect("recorded");
    assert_eq!(reason, HighPrecision::Dtype(DType::F64));
}

#[test]
fn what_is_not_finite_stays_visible() {
    for activation in [Current, Static(0.01)] {
        for m in [1, 2, 40] {
            let mut random = Random(7);
            let (layer, weight, _) = layer::<Flex>(&mut random, [16, 8], activation);
            let mut x = random.spread(m * 16);
            x[(m - 1) * 16 + 3] = f32::INFINITY;
            let y = values(layer.forward(tensor::<Flex, 2>(&x, [m, 16])));
            assert!(y[(m - 1) * 8..].iter().all(|y| y.is_nan()));
            assert!(y[..(m - 1) * 8].iter().all(|y| y.is_finite()));

            let mut weight = weight.clone();
            weight[5] = f32::NAN;
            let weight = tensor::<Flex, 2>(&weight, [16, 8]);
            let layer = FrozenLinear::from_weight(weight, None, activation).expect("good");
            let x = random.spread(m * 16);
            let y = values(layer.forward(tensor::<Flex, 2>(&x, [m, 16])));
            assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i % 8 == 5)));
        }
    }
}

#[test]
fn a_static_scale_saturates_and_the_trace_counts_it() {
    let weight = tensor::<Flex, 2>(&[448.0, 1.0], [2, 1]);
    let layer = FrozenLinear::from_weight(weight, None, Static(0.5)).expect("good");
    let x = tensor::<Flex, 2>(&[1000.0, 1.0, 224.0, -3e38], [2, 2]);
    let (y, report) = trace(|| layer.forward(x));
    assert_eq!(values(y), [224.0 * 448.0 + 1.0, 224.0 * 448.0 - 224.0]);
    let [product] = &report.products[..] else { panic!("one product: {report}") };
    let (lhs, rhs) = (product.lhs.expect("in FP8"), product.rhs.expect("in FP8"));
    assert_eq!((lhs.format, lhs.scale, lhs.saturated), (E4M3, 0.5, 2));
    assert_eq!((rhs.format, rhs.scale, rhs.saturated), (E4M3, 1.0, 0));
    assert_eq!(product.kind, ProductKind::Linear);
    assert_eq!([product.gemm.m, product.gemm.k, product.gemm.n], [2, 2, 1]);
}

/// Inside the decorator the layer runs once, as FP8, with every filter; and not at all in FP8 in high precision.
#[test]
fn a_frozen_layer_runs_once_and_obeys_high_precision() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let mut random = Random(8);
    let (layer, weight, _) = layer::<B>(&mut random, [8, 4], Current);
    let x = tensor::<B, 2>(&random.spread(2 * 8), [2, 8]);
    let (_, report) = trace(|| layer.forward(x.clone()));
    assert_eq!((report.products.len(), report.fp8().count()), (1, 1), "{report}");

    let (y, report) = trace(|| high_precision(|| layer.forward(x.clone())));
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [HighPrecision::Off], "{report}");
    let rounded = reference::quantize_dequantize(&weight, E4M3);
    let exact: Vec<f64> = values(x.clone()).iter().map(|x| f64::from(*x)).collect();
    let product = reference::matmul(&exact, &rounded, [2, 8, 4]).0;
    let bias = values(layer.bias().expect("given").clone());
    let expected: Vec<_> =
        product.iter().enumerate().map(|(i, y)| *y as f32 + bias[i % 4]).collect();
    assert_close(&values(y), &expected, 1e-6, "in high precision");
}

#[test]
#[should_panic(expected = "frozen layers no derivative")]
fn a_gradient_does_not_end_silently() {
    let (layer, ..) = layer::<Autodiff<Flex>>(&mut Random(9), [8, 4], Current);
    layer.forward(tensor::<Autodiff<Flex>, 2>(&[1.0; 8], [1, 8]).require_grad());
}

#[test]
#[should_panic(expected = "a FrozenLinear of 8 inputs and 4 outputs takes […, 8], not [2, 9]")]
fn inputs_of_another_width_are_refused() {
    let (layer, ..) = layer::<Flex>(&mut Random(9), [8, 4], Current);
    layer.forward(tensor::<Flex, 2>(&[1.0; 18], [2, 9]));
}

#[test]
fn calibration_covers_every_sample() {
    let samples = [[1.0, -7.0, 0.5], [3.0, f32::NAN, f32::NEG_INFINITY]];
    let samples = samples.map(|sample| tensor::<Flex, 1>(&sample, [3]));
    let scale = ActivationScale::calibrate(samples).expect("there are finite elements");
    assert_eq!(scale, Static(7.0 / 448.0));
    assert_eq!(ActivationScale::calibrated(448.0).expect("finite"), Static(1.0));
    for amax in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        assert!(matches!(ActivationScale::calibrated(amax), Err(Fp8Error::Invalid { .. })));
    }
    let error = ActivationScale::calibrate(Vec::<Tensor<Flex, 2>>::new()).unwrap_err();
    assert!(error.to_string().contains("amax of the samples is 0"), "{error}");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let device = Default::default();
    let codes = |format| Fp8Codes::<Flex, 2>::from_bytes(vec![0x38; 6], [2, 3], format, &device);
    let message = |format, scale, bias: Option<usize>, activation| {
        let bias = bias.map(|len| tensor(&vec![1.0; len], [len]));
        let layer = FrozenLinear::from_parts(codes(format).expect("6"), scale, bias, activation);
        layer.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(message(E4M3, 0.1, Some(3), Static(0.2)), "");
    assert!(message(E5M2, 0.1, None, Current).contains("E4M3"));
    assert!(message(E4M3, 0.1, Some(2), Current).contains("2 elements for 3 outputs"));
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        assert!(message(E4M3, scale, None, Current).contains("weight_scale is"), "{scale}");
        assert!(message(E4M3, 1.0, None, Static(scale)).contains("input_scale is"), "{scale}");
    }
    let empty = Tensor::<Flex, 2>::zeros([0, 3], &device);
    let error = FrozenLinear::from_weight(empty, None, Current).unwrap_err();
    assert!(error.to_string().contains("has no elements"));
}

fn check_memory<B: Fp8Matmul>() {
    let (layer, ..) = layer::<B>(&mut Random(10), [31, 33], Current);
    assert_eq!(layer.bytes(), 31 * 33 + 4 * 33);
    assert_eq!(layer.codes().bytes_held(), 31 * 33);
    assert_eq!(layer.num_params(), 31 * 33 + 33);
    assert_eq!(layer.devices(), [B::Device::default()]);
    let moved = layer.clone().fork(&Default::default());
    assert_eq!(moved.codes().to_bytes(), layer.codes().to_bytes());
}

#[test]
fn a_weight_takes_one_byte_an_element() {
    check_memory::<Flex>();
    check_memory::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_memory::<burn::backend::NdArray>();
}

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

/// The layer without what it lies on.
fn parts<B: Backend>(layer: &FrozenLinear<B>) -> (Vec<u8>, f32, Option<Vec<f32>>, ActivationScale) {
    let bias = layer.bias().map(|bias| values(bias.clone()));
    (layer.codes().to_bytes(), layer.weight_scale(), bias, layer.activation())
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
