//! Layers for inference with weights in FP8: what they compute.

use ActivationScale::{Current, Static};

use burn_fp8::burn_fp8_core::Overflow;

use crate::common::files::NO_SCALES;
use crate::common::frozen::{layer, outputs_follow_the_definition, quantized};
use crate::common::*;

tests_on_cpu!([
    outputs_follow_the_definition,
    inputs_have_any_rank,
    weights_and_biases_without_a_finite_element_are_refused,
    a_weight_takes_one_byte_an_element,
]);

#[test]
fn layers_on_decorated_backends_do_the_same() {
    outputs_follow_the_definition::<Fp8Backend<Flex>>();
    inputs_have_any_rank::<Outer<Flex>>();
    weights_and_biases_without_a_finite_element_are_refused::<Outer<Flex>>();
    a_weight_takes_one_byte_an_element::<Outer<Flex>>();
}

/// What a layer computes, by definition.
fn exact(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    shape: [usize; 3],
    activation: ActivationScale,
) -> Exact {
    let weight = reference::quantize_dequantize(weight, E4M3);
    Exact::product(&quantized(x, activation), &weight, shape).plus_bias(bias)
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
    const SHAPE: [usize; 2] = [40, 72];
    let mut random = Random(3);
    let [weight, bias, x] = [40 * 72, 72, 6 * 40].map(|count| random.spread(count));
    fn run<B: Fp8Matmul>(
        weight: Tensor<B, 2>,
        bias: &[f32],
        x: &[f32],
    ) -> (Vec<u8>, f32, Vec<f32>) {
        let layer = FrozenLinear::from_weight(weight, Some(tensor(bias, [72])), Current);
        let layer = layer.expect("a good layer");
        let y = layer.forward(tensor::<B, 2>(x, [6, 40]));
        (layer.tensor().to_bytes(), layer.tensor().read_scale(), values(y))
    }
    let flex = run::<Flex>(tensor(&weight, SHAPE), &bias, &x);
    assert_eq!(run::<Fp8Backend<Flex>>(tensor(&weight, SHAPE), &bias, &x), flex);
    assert_eq!(run::<Autodiff<Flex>>(tensor(&weight, SHAPE), &bias, &x), flex);
    assert_eq!(run::<Outer<Flex>>(tensor(&weight, SHAPE), &bias, &x), flex);
    // A transposed weight is frozen as its copy.
    let transposed = tensor::<Flex, 2>(&reference::transpose(&weight, SHAPE), [72, 40]);
    assert_eq!(run::<Flex>(transposed.transpose(), &bias, &x), flex);
    let codes = weight.iter().map(|w| E4M3.encode(w / flex.1, Default::default()));
    assert_eq!(flex.0, codes.collect::<Vec<_>>());
    #[cfg(feature = "ndarray")]
    {
        let ndarray = run::<burn::backend::NdArray>(tensor(&weight, SHAPE), &bias, &x);
        assert_eq!((ndarray.0, ndarray.1), (flex.0, flex.1));
    }
}

fn inputs_have_any_rank<B: Fp8Matmul>() {
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
fn f64_is_not_quantized_and_says_so() {
    let (layer, ..) = layer::<Flex>(&mut Random(6), [32, 20], Current);
    let x = Tensor::<Flex, 2>::ones([3, 32], &Default::default()).cast(FloatDType::F64);
    let (y, report) = trace(|| layer.forward(x));
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
    let mut random = Random(8);
    let (layer, weight, bias) = layer::<Outer<Flex>>(&mut random, [8, 4], Current);
    let x = tensor::<Outer<Flex>, 2>(&random.spread(2 * 8), [2, 8]);
    let (_, report) = trace(|| layer.forward(x.clone()));
    assert_eq!((report.products.len(), report.fp8().count()), (1, 1), "{report}");

    let (y, report) = trace(|| high_precision(|| layer.forward(x.clone())));
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [HighPrecision::Off], "{report}");
    let rounded = reference::quantize_dequantize(&weight, E4M3);
    let exact = Exact::product(&wide(&values(x)), &rounded, [2, 8, 4]).plus_bias(&bias);
    exact.assert(&values(y), Sums::F32, "in high precision");
}

/// Straight through the quantization of the input, times the weight that codes and scale stand for. The weight stays as it is.
fn check_gradient_of_the_input<B: Fp8Matmul + AutodiffBackend>() {
    let [m, k, n] = [6, 40, 24];
    for activation in [Current, Static(0.01), ActivationScale::PerToken, ActivationScale::Mx] {
        let mut random = Random(9);
        let (layer, weight, _) = layer::<B>(&mut random, [k, n], activation);
        let weight = reference::quantize_dequantize(&weight, E4M3);
        let (x, grad) = (random.spread(m * k), random.spread(m * n));
        let x = tensor::<B, 3>(&x, [2, m / 2, k]).require_grad();
        let y = layer.forward(x.clone());
        let grads = (y * tensor::<B, 3>(&grad, [2, m / 2, n])).sum().backward();
        let actual = values(x.grad(&grads).expect("it reaches the input"));
        let transposed: Vec<f64> = (0..k * n).map(|at| weight[at % k * n + at / k]).collect();
        let grad: Vec<f64> = grad.iter().map(|x| f64::from(*x)).collect();
        Exact::product(&grad, &transposed, [m, n, k]).assert(
            &actual,
            Sums::F32,
            &format!("{activation:?}"),
        );
    }
}

#[test]
fn the_gradient_of_an_output_reaches_the_input() {
    check_gradient_of_the_input::<Autodiff<Flex>>();
    check_gradient_of_the_input::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_gradient_of_the_input::<Autodiff<burn::backend::NdArray>>();
}

/// A matrix unit sums over multiples of 32.
#[test]
fn blocks_that_hold_all_inputs_may_be_of_any_height() {
    let n = 96;
    for (k, rows) in [(40, 40), (48, 48), (48, 50), (80, 80), (80, 96)] {
        let mut random = Random(13);
        let numbers = random.spread(k * n);
        let codes = numbers.iter().map(|x| E4M3.encode(*x, Overflow::Saturate)).collect();
        let device = Default::default();
        let scales = tensor::<Flex, 2>(&[0.25, 3.0], [1, 2]);
        let weight = Fp8Tensor::from_blocks(codes, [k, n], E4M3, scales, [rows, 64], &device);
        let weight = weight.expect("good");
        for activation in [ActivationScale::PerToken, Current, Static(0.5)] {
            let layer = FrozenLinear::from_tensor(weight.clone(), None, activation);
            let layer = layer.expect("good");
            let x = tensor::<Flex, 2>(&random.spread(5 * k), [5, k]);
            let emulated = Fp8Config::default().with_execution(Execution::FakeQuantized);
            let expected = emulated.scope(|| values(layer.forward(x.clone())));
            let what = format!("{k} inputs, {activation:?}");
            assert_close(&values(layer.forward(x)), &expected, 1e-5, &what);
        }
    }
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
        says(error, [expected]);
    }
}

fn weights_and_biases_without_a_finite_element_are_refused<B: Fp8Matmul>() {
    let device = Default::default();
    let weight = |weight: [f32; 4]| tensor::<B, 2>(&weight, [2, 2]);
    let bias = |bias: [f32; 2]| Some(tensor::<B, 1>(&bias, [2]));
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let refused = |layer: Result<FrozenLinear<B>, Fp8Error>, expected: &str| {
        refused(layer, [expected, "all are NaN or infinite"]);
    };
    for bad in [[nan; 4], [inf; 4], [nan, inf, -inf, nan]] {
        let layer = FrozenLinear::from_weight(weight(bad), None, Current);
        refused(layer, "no element of the weight [2, 2] is finite");
        let [a, b, ..] = bad;
        let layer = FrozenLinear::from_weight(weight([1.0; 4]), bias([a, b]), Current);
        refused(layer, "no element of the bias [2] is finite");
    }
    let codes =
        |codes| Fp8Tensor::<B, 2>::from_bytes(codes, [2, 2], E4M3, 1.0, &device).expect("four");
    let layer = FrozenLinear::from_tensor(codes(vec![0x7f, 0xff, 0x7f, 0xff]), None, Current);
    refused(layer, "no element of the weight [2, 2] is finite");
    let layer = FrozenLinear::from_tensor(codes(vec![0; 4]), bias([nan, inf]), Current);
    refused(layer, "no element of the bias [2] is finite");
    // One that is finite is enough.
    FrozenLinear::from_weight(weight([nan, inf, 0.0, nan]), bias([inf, 1.0]), Current)
        .expect("seen in what it gives");
    FrozenLinear::from_tensor(codes(vec![0x7f, 0xff, 0x7f, 0x7e]), bias([nan, 0.0]), Current)
        .expect("seen in what it gives");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let device = Default::default();
    let message = |format, scale, bias: Option<usize>, activation| {
        let bias = bias.map(|len| tensor(&vec![1.0; len], [len]));
        Fp8Tensor::<Flex, 2>::from_bytes(vec![0x38; 6], [2, 3], format, scale, &device)
            .and_then(|weight| FrozenLinear::from_tensor(weight, bias, activation))
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(message(E4M3, 0.1, Some(3), Static(0.2)), "");
    assert!(message(E5M2, 0.1, None, Current).contains("E4M3"));
    assert!(message(E4M3, 0.1, Some(2), Current).contains("2 elements for 3 outputs"));
    for scale in NO_SCALES {
        assert!(message(E4M3, scale, None, Current).contains("the scale is"), "{scale}");
        assert!(message(E4M3, 1.0, None, Static(scale)).contains("input_scale is"), "{scale}");
    }
    let empty = Tensor::<Flex, 2>::zeros([0, 3], &device);
    refused(FrozenLinear::from_weight(empty, None, Current), ["has no elements"]);
}

fn a_weight_takes_one_byte_an_element<B: Fp8Matmul>() {
    let (layer, ..) = layer::<B>(&mut Random(10), [31, 33], Current);
    assert_eq!(layer.bytes(), 31 * 33 + 4 * 33);
    assert_eq!(layer.tensor().bytes_held(), 31 * 33);
    assert_eq!(layer.num_params(), 31 * 33 + 33);
    assert_eq!(layer.devices(), [B::Device::default()]);
    let moved = layer.clone().fork(&Default::default());
    assert_eq!(moved.tensor().to_bytes(), layer.tensor().to_bytes());
}

#[test]
fn a_trained_layer_freezes_with_the_scale_of_its_history() {
    type B = Autodiff<Flex>;
    let mut layer = Fp8LinearConfig::new(32, 16).init::<B>(&Default::default());
    refused(layer.freeze(), ["has seen no input", "freeze_with"]);
    assert_eq!(layer.freeze_with(Current).expect("needs no history").activation(), Current);

    for poison in [f32::NAN, f32::INFINITY] {
        let x = tensor::<B, 2>(&[[poison; 32], [1.0; 32]].concat(), [2, 32]);
        let grads = GradientsParams::from_grads(layer.forward(x).sum().backward(), &layer);
        let poisoned = Fp8Optimizer::new(SgdConfig::new().init()).step(0.0, layer.clone(), grads);
        refused(poisoned.freeze(), ["not finite", "freeze_with"]);
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

    let x = tensor::<Flex, 2>(&random.units(8 * 32), [8, 32]) * 3.0;
    let exact = Linear::from(layer.valid()).forward(x.clone());
    let noise = sqnr(&wide(&values(exact)), &wide(&values(frozen.forward(x))));
    // Five percent, and not nothing.
    assert!(noise > 26.0 && noise.is_finite(), "{noise} dB");
}
