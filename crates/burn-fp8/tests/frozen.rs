//! Layers for inference with weights in FP8: what they compute.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::report::HighPrecision;
use burn_fp8::{Fp8Backend, Fp8Codes, Fp8Error, Fp8Matmul, ProductKind, high_precision, trace};
use common::exact::{Exact, Sums};
use common::frozen::layer;
use common::{Random, bits, every_matmul, reference, tensor, values};

use ActivationScale::{Current, Static};

/// What a layer computes, by definition.
fn exact(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    shape: [usize; 3],
    activation: ActivationScale,
) -> Exact {
    let x = match activation {
        Current => reference::quantize_dequantize(x, E4M3),
        Static(scale) => reference::quantize_dequantize_by(x, scale, E4M3),
    };
    let weight = reference::quantize_dequantize(weight, E4M3);
    Exact::product(&x, &weight, shape).plus_bias(bias)
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
            let exact = exact(&x, &weight, &bias, [m, k, n], activation);
            exact.assert(&y, Sums::F32, &format!("{m}×{k}×{n} {activation:?}"));
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
        let exact = exact(&x, &weight, &bias, [6, k, n], Current);
        exact.assert(&ndarray.2, Sums::F32, "NdArray");
        exact.assert(&flex.2, Sums::F32, "Flex");
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
    let (layer, weight, bias) = layer::<B>(&mut random, [12, 10], Static(0.01));
    let input = random.spread(6 * 12);
    let x = tensor::<B, 2>(&input, [6, 12]);
    let flat = values(layer.forward(x.clone()));
    let exact = |x: &[f32]| exact(x, &weight, &bias, [x.len() / 12, 12, 10], Static(0.01));
    exact(&input).assert(&flat, Sums::F32, "all rows");
    let y = layer.forward(x.clone().reshape([2, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([2, 3, 10], flat.clone()));
    let y = layer.forward(x.clone().reshape([1, 2, 1, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([1, 2, 1, 3, 10], flat.clone()));
    // A row by itself is summed in another order.
    let y = layer.forward(x.clone().narrow(0, 2, 1).reshape([12]));
    assert_eq!(y.dims(), [10]);
    exact(&input[24..36]).assert(&values(y), Sums::F32, "one row");
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
    let (layer, weight, bias) = layer::<Flex>(&mut random, [32, 20], Current);
    let x = tensor::<Flex, 2>(&random.spread(3 * 32), [3, 32]);
    let weight = reference::quantize_dequantize(&weight, E4M3);
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let x = x.clone().cast(dtype);
        let y = layer.forward(x.clone());
        assert_eq!(y.dtype(), DType::from(dtype));
        // Product and bias are rounded to the type, and their sum is.
        let x = reference::quantize_dequantize(&values(x), E4M3);
        let bias = values(tensor::<Flex, 1>(&bias, [20]).cast(dtype));
        let product = Exact::product(&x, &weight, [3, 32, 20]).rounded(dtype);
        let exact = product.plus_bias(&bias).rounded(dtype);
        exact.assert(&values(y), Sums::F32, &format!("{dtype:?}"));
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
    let (layer, weight, bias) = layer::<B>(&mut random, [8, 4], Current);
    let x = tensor::<B, 2>(&random.spread(2 * 8), [2, 8]);
    let (_, report) = trace(|| layer.forward(x.clone()));
    assert_eq!((report.products.len(), report.fp8().count()), (1, 1), "{report}");

    let (y, report) = trace(|| high_precision(|| layer.forward(x.clone())));
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [HighPrecision::Off], "{report}");
    let rounded = reference::quantize_dequantize(&weight, E4M3);
    let x: Vec<f64> = values(x.clone()).iter().map(|x| f64::from(*x)).collect();
    let exact = Exact::product(&x, &rounded, [2, 8, 4]).plus_bias(&bias);
    exact.assert(&values(y), Sums::F32, "in high precision");
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
    let scale = ActivationScale::from_samples(samples).expect("there are finite elements");
    assert_eq!(scale, Static(7.0 / 448.0));
    assert_eq!(ActivationScale::from_amax(448.0).expect("finite"), Static(1.0));
    for amax in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        assert!(matches!(ActivationScale::from_amax(amax), Err(Fp8Error::Invalid { .. })));
    }
}

#[test]
fn samples_that_tell_nothing_are_refused_with_the_reason() {
    for (samples, expected) in [
        (vec![], "there are no samples"),
        (vec![vec![], vec![]], "the samples (2) have no elements"),
        (vec![vec![f32::NAN, f32::INFINITY], vec![f32::NAN]], "none of the 3 elements"),
        (
            vec![vec![0.0, f32::NAN], vec![]],
            "all finite elements of the samples (2 elements) are 0",
        ),
    ] {
        let samples = samples.iter().map(|sample| tensor::<Flex, 1>(sample, [sample.len()]));
        let error = ActivationScale::from_samples(samples).expect_err("nothing to scale by");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn check_that_nothing_finite_is_refused<B: Fp8Matmul>() {
    let device = Default::default();
    let weight = |weight: [f32; 4]| tensor::<B, 2>(&weight, [2, 2]);
    let bias = |bias: [f32; 2]| Some(tensor::<B, 1>(&bias, [2]));
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let refused = |layer: Result<FrozenLinear<B>, Fp8Error>, expected: &str| {
        let error = layer.expect_err("it could only give NaN").to_string();
        assert!(error.contains(expected) && error.contains("all are NaN or infinite"), "{error}");
    };
    for bad in [[nan; 4], [inf; 4], [nan, inf, -inf, nan]] {
        let layer = FrozenLinear::from_weight(weight(bad), None, Current);
        refused(layer, "no element of the weight [2, 2] is finite");
        let [a, b, ..] = bad;
        let layer = FrozenLinear::from_weight(weight([1.0; 4]), bias([a, b]), Current);
        refused(layer, "no element of the bias [2] is finite");
    }
    let codes = |codes| Fp8Codes::<B, 2>::from_bytes(codes, [2, 2], E4M3, &device).expect("four");
    let layer = FrozenLinear::from_parts(codes(vec![0x7f, 0xff, 0x7f, 0xff]), 1.0, None, Current);
    refused(layer, "no element of the weight [2, 2] is finite");
    let layer = FrozenLinear::from_parts(codes(vec![0; 4]), 1.0, bias([nan, inf]), Current);
    refused(layer, "no element of the bias [2] is finite");
    // One that is finite is enough.
    FrozenLinear::from_weight(weight([nan, inf, 0.0, nan]), bias([inf, 1.0]), Current)
        .expect("seen in what it gives");
    FrozenLinear::from_parts(codes(vec![0x7f, 0xff, 0x7f, 0x7e]), 1.0, bias([nan, 0.0]), Current)
        .expect("seen in what it gives");
}

#[test]
fn weights_and_biases_without_a_finite_element_are_refused() {
    check_that_nothing_finite_is_refused::<Flex>();
    check_that_nothing_finite_is_refused::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_that_nothing_finite_is_refused::<burn::backend::NdArray>();
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

#[test]
fn a_trained_layer_freezes_with_the_scale_of_its_history() {
    use burn::module::AutodiffModule;
    use burn::optim::{GradientsParams, Optimizer, SgdConfig};
    use burn_fp8::nn::Fp8LinearConfig;
    use burn_fp8::optim::Fp8Optimizer;

    type B = Autodiff<Flex>;
    let mut layer = Fp8LinearConfig::new(32, 16).init::<B>(&Default::default());
    let error = layer.freeze().expect_err("it has seen nothing").to_string();
    assert!(error.contains("has seen no input") && error.contains("freeze_with"), "{error}");
    assert_eq!(layer.freeze_with(Current).expect("needs no history").activation(), Current);

    for poison in [f32::NAN, f32::INFINITY] {
        let x = tensor::<B, 2>(&[[poison; 32], [1.0; 32]].concat(), [2, 32]);
        let grads = GradientsParams::from_grads(layer.forward(x).sum().backward(), &layer);
        let poisoned = Fp8Optimizer::new(SgdConfig::new().init()).step(0.0, layer.clone(), grads);
        let error = poisoned.freeze().expect_err("the scale is a kept one").to_string();
        assert!(error.contains("not finite") && error.contains("freeze_with"), "{error}");
    }

    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
    let mut random = Random(9);
    for amax in [0.5f32, 3.0, 1.0] {
        let mut x: Vec<f32> = (0..8 * 32).map(|_| random.unit() * amax * 0.9).collect();
        x[17] = -amax;
        let y = layer.forward(tensor::<B, 2>(&x, [8, 32]));
        let grads = GradientsParams::from_grads(y.powf_scalar(2.0).mean().backward(), &layer);
        layer = optimizer.step(0.01, layer, grads);
    }
    let frozen = layer.valid().freeze().expect("trained");
    // By Flax's formula, from the largest amax.
    assert_eq!(frozen.activation(), Static(1.0 / (448.0 / 3.0f32)));
    assert_eq!(frozen.bytes(), 32 * 16 + 16 * 4);

    let x: Vec<f32> = (0..8 * 32).map(|_| 3.0 * random.unit()).collect();
    let x = tensor::<Flex, 2>(&x, [8, 32]);
    let exact = burn::nn::Linear::from(layer.valid()).forward(x.clone());
    let (exact, fp8) = (values(exact), values(frozen.forward(x)));
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let difference = norm(&mut exact.iter().zip(&fp8).map(|(a, b)| a - b));
    let error = difference / norm(&mut exact.iter().copied());
    assert!(error > 0.0 && error < 0.05, "{error}");
}
