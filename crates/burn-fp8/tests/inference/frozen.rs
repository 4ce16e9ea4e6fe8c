//! Layers for inference with weights in FP8: what they compute, in tensors and on slices.

use ActivationScale::{Current, Static};
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;

use crate::common::frozen::{
    ACTIVATIONS, Case, SHAPES, for_each_layer, outputs_follow_the_definition, weights,
};
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

/// A layer of random numbers.
fn layer<B: Fp8Matmul>(
    seed: u64,
    [k, n]: [usize; 2],
    activation: ActivationScale,
) -> FrozenLinear<B> {
    let bias = Some(random(seed + 1, [n]));
    FrozenLinear::from_weight(random(seed, [k, n]), bias, activation).expect("a good layer")
}

/// Integers with sums that f32 holds: no order of summation can change them, so the paths must agree bit for bit.
fn integers<B: Backend>(seed: u64, shape: [usize; 2]) -> Tensor<B, 2> {
    let mut values: Vec<_> = (-7..=7).map(|x| x as f32).collect();
    values = Random(seed).picks(&values, shape[0] * shape[1]);
    // The amax makes every scale 1.
    values[0] = 448.0;
    tensor(&values, shape)
}

#[test]
fn a_frozen_layer_is_the_product_of_the_decorator() {
    for [m, k, n] in [[1, 48, 80], [3, 48, 80], [32, 64, 32], [33, 64, 48], [100, 16, 17]] {
        let (x, w) = (integers::<Fp8Backend<Flex>>(1, [m, k]), integers(2, [k, n]));
        let (dynamic, report) = every_matmul().scope(|| trace(|| x.clone().matmul(w.clone())));
        assert_eq!(report.fp8().count(), 1);
        for activation in [Current, Static(1.0)] {
            let layer = FrozenLinear::from_weight(w.clone(), None, activation).expect("good");
            let frozen = values(layer.forward(x.clone()));
            assert_eq!(bits(&frozen), bits(&values(dynamic.clone())), "{m}×{k}×{n}");
        }
    }
}

#[test]
fn decorated_backends_hold_the_same_codes_and_give_the_same_output() {
    fn run<B: Fp8Matmul>() -> (Vec<u8>, Vec<f32>) {
        let layer = layer::<B>(3, [40, 72], Current);
        (layer.tensor().to_bytes(), values(layer.forward(random::<B, 2>(5, [6, 40]))))
    }
    let flex = run::<Flex>();
    assert_eq!(run::<Fp8Backend<Flex>>(), flex);
    assert_eq!(run::<Autodiff<Flex>>(), flex);
    assert_eq!(run::<Outer<Flex>>(), flex);
    #[cfg(feature = "ndarray")]
    assert_eq!(run::<NdArray>().0, flex.0);
}

fn inputs_have_any_rank<B: Fp8Matmul>() {
    let layer = layer::<B>(5, [12, 10], Static(0.01));
    let x = random::<B, 2>(7, [6, 12]);
    let flat = values(layer.forward(x.clone()));
    let y = layer.forward(x.clone().reshape([2, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([2, 3, 10], flat.clone()));
    let y = layer.forward(x.clone().reshape([1, 2, 1, 3, 12]));
    assert_eq!((y.dims(), values(y)), ([1, 2, 1, 3, 10], flat.clone()));
    // A row by itself is summed in another order.
    let y = layer.forward(x.clone().narrow(0, 2, 1).reshape([12]));
    assert_eq!(y.dims(), [10]);
    assert_close(&values(y), &flat[20..30], 1e-5, "one row");
    let transposed = x.clone().transpose().reshape([12, 6]).transpose();
    assert_eq!(values(layer.forward(transposed)), flat);
    let y = layer.forward(Tensor::<B, 3>::zeros([2, 0, 12], &x.device()));
    assert_eq!(y.dims(), [2, 0, 10]);
}

#[test]
fn f64_is_not_quantized_and_says_so() {
    let layer = layer::<Flex>(6, [32, 20], Current);
    let (y, report) = trace(|| layer.forward(ones::<_, 2>([3, 32]).cast(FloatDType::F64)));
    assert_eq!((y.dtype(), reasons(&report)), (DType::F64, vec![HighPrecision::Dtype(DType::F64)]));
}

#[test]
fn what_is_not_finite_stays_visible() {
    for (activation, m) in
        [Current, Static(0.01)].into_iter().flat_map(|a| [1, 2, 40].map(|m| (a, m)))
    {
        let (weight, mut x) = (Random(7).spread(16 * 8), Random(8).spread(m * 16));
        let forward = |weight: &[f32], x: &[f32]| {
            let layer = FrozenLinear::from_weight(tensor(weight, [16, 8]), None, activation);
            values(layer.expect("good").forward(tensor::<Flex, 2>(x, [m, 16])))
        };
        let mut poisoned = weight.clone();
        poisoned[5] = f32::NAN;
        let y = forward(&poisoned, &x);
        assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i % 8 == 5)));
        x[(m - 1) * 16 + 3] = f32::INFINITY;
        let y = forward(&weight, &x);
        assert!(y[(m - 1) * 8..].iter().all(|y| y.is_nan()));
        assert!(y[..(m - 1) * 8].iter().all(|y| y.is_finite()));
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
    let operands = [product.lhs, product.rhs].map(|operand| operand.expect("in FP8"));
    let operands = operands.map(|operand| (operand.format, operand.scale, operand.saturated));
    assert_eq!(operands, [(E4M3, 0.5, 2), (E4M3, 1.0, 0)]);
    assert_eq!(product.kind, ProductKind::Linear);
    assert_eq!([product.gemm.m, product.gemm.k, product.gemm.n], [2, 2, 1]);
}

/// Inside the decorator the layer runs once, as FP8, with every filter; and not at all in FP8 in high precision.
#[test]
fn a_frozen_layer_runs_once_and_obeys_high_precision() {
    let layer = layer::<Outer<Flex>>(8, [8, 4], Current);
    let x = random::<Outer<Flex>, 2>(10, [2, 8]);
    let (_, report) = trace(|| layer.forward(x.clone()));
    assert_eq!((report.products.len(), report.fp8().count()), (1, 1), "{report}");
    let (y, report) = trace(|| high_precision(|| layer.forward(x.clone())));
    assert_eq!(reasons(&report), [HighPrecision::Off], "{report}");
    let weight = fp8::quantize_dequantize(&Random(8).spread(32), E4M3);
    let exact = Exact::product(&wide(&values(x)), &weight, [2, 8, 4]);
    let exact = exact.plus_bias(&Random(9).spread(4));
    exact.assert(&values(y), Sums::F32, "in high precision");
}

/// Straight through the quantization of the input, times the weight that codes and scales stand for. The weight stays as it is.
fn gradients_follow_the_definition<B: Fp8Matmul + AutodiffBackend>() {
    for_each_layer::<B>(&SHAPES, &[FloatDType::F32], 7, &ACTIVATIONS, |case| {
        let Case { layer, x, what, .. } = case;
        let ([m, k], [_, n]) = (x.dims(), layer.dims());
        let g = Random(3).spread(m * n);
        let x = x.reshape([1, m, k]).require_grad();
        let grads = (layer.forward(x.clone()) * tensor(&g, [1, m, n])).sum().backward();
        let weight = wide(&values(layer.weight().transpose()));
        Exact::product(&wide(&g), &weight, [m, n, k]).assert(&grad(&x, &grads), Sums::F32, &what);
    });
}

#[test]
fn the_gradient_of_an_output_reaches_the_input() {
    gradients_follow_the_definition::<Autodiff<Flex>>();
    gradients_follow_the_definition::<Outer<Flex>>();
    #[cfg(feature = "ndarray")]
    gradients_follow_the_definition::<Autodiff<NdArray>>();
}

fn emulated<R>(f: impl FnOnce() -> R) -> R {
    Fp8Config::default().with_execution(Execution::FakeQuantized).scope(f)
}

/// On slices as in tensors. A matrix unit multiplies the same codes by the same kernel where both operands have scales of whole rows, or such of equal
/// blocks that are no powers of two; the rest is summed in another order.
fn layers_on_slices_follow_the_definition<B: Fp8Matmul>() {
    for_each_layer::<B>(&SHAPES, &[FloatDType::F32], 7, &ACTIVATIONS, |case| {
        let Case { layer, x, exact, what, .. } = case;
        let (input, mut found) = (values(x.clone()), vec![f32::NAN; exact.values.len()]);
        emulated(|| {
            let on_slices = layer.on_host().expect("Flex has codes in memory");
            assert!(on_slices.applies() && on_slices.linear().unit.is_none());
            on_slices.linear().forward(&input, &mut found);
            exact.assert(&found, Sums::F32, &what);
        });
        let on_slices = layer.on_host().expect("on slices");
        on_slices.linear().forward(&input, &mut found);
        let in_powers = matches!(
            layer.activation(),
            ActivationScale::Mx | ActivationScale::Blocks { power_of_two: true, .. }
        );
        match on_slices.linear().unit {
            Some(_) if !in_powers => assert_eq!(found, values(layer.forward(x)), "{what}"),
            _ => exact.assert(&found, Sums::F32, &what),
        }
    });
}

#[test]
fn layers_on_slices_are_as_in_tensors() {
    layers_on_slices_follow_the_definition::<Flex>();
    layers_on_slices_follow_the_definition::<Fp8Backend<Flex>>();
}

#[test]
fn a_matrix_unit_multiplies_on_slices() {
    if !has_unit::<Flex>() {
        return burn_fp8_test_support::skip("no matrix unit");
    }
    let of = |index: usize, activation| {
        let (weight, _) = weights::<Flex>(5, [130, 70]).swap_remove(index);
        FrozenLinear::from_tensor(weight, None, activation).expect("a layer")
    };
    for (index, activation) in (0..5).flat_map(|index| ACTIVATIONS.map(|a| (index, a))) {
        let is_on_unit = match activation {
            ActivationScale::Unquantized | ActivationScale::Mx => false,
            ActivationScale::Blocks { size, .. } => index > 2 && size == 64,
            _ => index < 3,
        };
        let on_slices = of(index, activation).on_host().expect("on slices");
        assert_eq!(on_slices.linear().unit.is_some(), is_on_unit, "{activation:?}, {index}");
    }
    // MXFP8 it multiplies in tensors alone: there are no slices where nothing else may multiply it.
    let layer = of(6, ActivationScale::Mx);
    let native = Fp8Config::default().with_execution(Execution::Native);
    native.scope(|| {
        layer.forward(ones::<_, 2>([1, 130]));
        assert!(layer.on_host().is_none());
    });
    assert_eq!(layer.on_host().expect("on slices").linear().unit, None);
}

#[test]
fn layers_are_on_slices_where_they_would_be_multiplied_so() {
    fn layer<B: Fp8Matmul>(activation: ActivationScale) -> FrozenLinear<B> {
        let (weight, _) = weights(5, [130, 70]).swap_remove(2);
        FrozenLinear::from_tensor(weight, None, activation).expect("a layer")
    }
    for activation in ACTIVATIONS {
        let of_flex = layer::<Flex>(activation);
        let on_host = emulated(|| of_flex.on_host()).expect("emulated");
        assert!(emulated(|| on_host.applies()));
        assert!(!on_host.applies(), "another execution");
        let (none, report) = trace(|| emulated(|| of_flex.on_host()));
        assert!(none.is_none() && report.products.is_empty(), "nothing ran");
        assert!(!trace(|| emulated(|| on_host.applies())).0);
        assert!(high_precision(|| of_flex.on_host()).is_none());
        // What cannot run is not refused by asking.
        let native = Fp8Config::default().with_execution(Execution::Native);
        let is_refused = match activation {
            ActivationScale::Unquantized => false,
            ActivationScale::Blocks { .. } | ActivationScale::Mx => true,
            _ => !has_unit::<Flex>(),
        };
        assert_eq!(native.scope(|| of_flex.on_host()).is_none(), is_refused, "{activation:?}");
        #[cfg(feature = "ndarray")]
        assert!(emulated(|| layer::<NdArray>(activation).on_host()).is_none());
        assert!(emulated(|| layer::<Autodiff<Flex>>(activation).on_host()).is_none());
    }
}

/// The memory of a view has more codes than the view.
#[test]
fn the_first_rows_of_a_tensor_are_a_weight() {
    let all = Fp8Tensor::<Flex, 2>::quantize_rows(random(3, [8, 64]), E4M3).expect("rows");
    let weight = all.rows(0..4).expect("rows").transpose();
    let activation = ActivationScale::Unquantized;
    let layer = FrozenLinear::from_tensor(weight.clone(), None, activation).expect("a layer");
    let x = random::<Flex, 2>(4, [1, 64]);
    let expected = values(x.clone().matmul(weight.dequantize()));
    let mut on_slices = vec![0.0; 4];
    layer.on_host().expect("on slices").linear().forward(&values(x.clone()), &mut on_slices);
    for found in [values(layer.forward(x)), on_slices] {
        assert_close(&found, &expected, 1e-5, "the first rows");
    }
}

#[test]
fn codes_are_changed_where_they_lie() {
    let x = Fp8Tensor::<Flex, 2>::quantize_rows(tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2]), E4M3);
    let changed = x.expect("rows").changed(|codes, scales| {
        assert_eq!((codes.len(), scales.len()), (4, 2));
        codes[2] = 0x38;
        scales[1] = 0.5;
    });
    let changed = changed.expect("they lie by rows");
    assert_eq!(values(changed.dequantize())[1..3], [2.0, 0.5]);
    let (by_blocks, _) = weights::<Flex>(5, [130, 70]).swap_remove(4);
    refused(by_blocks.changed(|_, _| ()).map(drop), ["have a scale each"]);
}

#[test]
#[should_panic(expected = "a FrozenLinear of 8 inputs and 4 outputs takes […, 8], not [2, 9]")]
fn inputs_of_another_width_are_refused() {
    layer::<Flex>(9, [8, 4], Current).forward(ones::<_, 2>([2, 9]));
}

#[test]
fn calibration_covers_every_sample_and_needs_one_that_tells_something() {
    let scale = |samples: &[&[f32]]| {
        let samples = samples.iter().map(|sample| tensor::<Flex, 1>(sample, [sample.len()]));
        ActivationScale::from_samples(samples)
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let found = scale(&[&[1.0, -7.0, 0.5], &[3.0, nan, -inf]]).expect("there are finite elements");
    assert_eq!(found, Static(7.0 / 448.0));
    assert_eq!(ActivationScale::from_amax(448.0).expect("finite"), Static(1.0));
    for amax in [0.0, -1.0, inf, nan] {
        assert!(matches!(ActivationScale::from_amax(amax), Err(Fp8Error::Invalid { .. })));
    }
    for (samples, expected) in [
        (&[][..], "there are no samples"),
        (&[&[][..], &[]], "the samples (2) have no elements"),
        (&[&[nan, inf], &[nan]], "none of the 3 elements"),
        (&[&[0.0, nan], &[]], "all finite elements of the samples (2 elements) are 0"),
    ] {
        let error = scale(samples).expect_err("nothing to scale by");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        says(error, [expected]);
    }
}

fn weights_and_biases_without_a_finite_element_are_refused<B: Fp8Matmul>() {
    let device = Default::default();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let of_weight = |weight: [f32; 4], bias: [f32; 2]| {
        let bias = Some(tensor::<B, 1>(&bias, [2]));
        FrozenLinear::from_weight(tensor::<B, 2>(&weight, [2, 2]), bias, Current)
    };
    let of_codes = |codes: [u8; 4], bias: [f32; 2]| {
        let codes = Fp8Tensor::<B, 2>::from_bytes(codes.to_vec(), [2, 2], E4M3, 1.0, &device);
        FrozenLinear::from_tensor(codes.expect("four"), Some(tensor(&bias, [2])), Current)
    };
    let one = [1.0; 2];
    let of_weights = [[nan; 4], [inf; 4], [nan, inf, -inf, nan]].map(|bad| of_weight(bad, one));
    let of_biases = [[nan; 2], [inf, -inf], [nan, inf]].map(|bad| of_weight([1.0; 4], bad));
    let codes = [of_codes([0x7f, 0xff, 0x7f, 0xff], one), of_codes([0; 4], [nan, inf])];
    let weight = "no element of the weight [2, 2] is finite";
    let bias = "no element of the bias [2] is finite";
    let layers = of_weights.into_iter().chain(of_biases).chain(codes);
    let expected = [weight, weight, weight, bias, bias, bias, weight, bias];
    for (layer, expected) in layers.zip(expected) {
        refused(layer, [expected, "all are NaN or infinite"]);
    }
    // One that is finite is enough.
    of_weight([nan, inf, 0.0, nan], [inf, 1.0]).expect("seen in what it gives");
    of_codes([0x7f, 0xff, 0x7f, 0x7e], [nan, 0.0]).expect("seen in what it gives");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let layer = |format, scale, bias: usize, activation| {
        let device = Default::default();
        Fp8Tensor::<Flex, 2>::from_bytes(vec![0x38; 6], [2, 3], format, scale, &device)
            .and_then(|weight| FrozenLinear::from_tensor(weight, Some(ones([bias])), activation))
    };
    layer(E4M3, 0.1, 3, Static(0.2)).expect("it fits");
    refused(layer(E5M2, 0.1, 3, Current), ["E4M3"]);
    refused(layer(E4M3, 0.1, 2, Current), ["2 elements for 3 outputs"]);
    for scale in hard::NO_SCALES {
        refused(layer(E4M3, scale, 3, Current), ["the scale is"]);
        refused(layer(E4M3, 1.0, 3, Static(scale)), ["input_scale is"]);
    }
    let empty = Tensor::<Flex, 2>::zeros([0, 3], &Default::default());
    refused(FrozenLinear::from_weight(empty, None, Current), ["has no elements"]);
}

fn a_weight_takes_one_byte_an_element<B: Fp8Matmul>() {
    let layer = layer::<B>(10, [31, 33], Current);
    assert_eq!(layer.bytes(), 31 * 33 + 4 * 33);
    assert_eq!(layer.tensor().bytes_held(), 31 * 33);
    assert_eq!(layer.num_params(), 31 * 33 + 33);
    assert_eq!(layer.devices(), [B::Device::default()]);
}

#[test]
fn a_trained_layer_freezes_with_the_scale_of_its_history() {
    type B = Autodiff<Flex>;
    let mut layer = Fp8LinearConfig::new(32, 16).init::<B>(&Default::default());
    refused(layer.freeze(), ["has seen no input", "freeze_with"]);
    assert_eq!(layer.freeze_with(Current).expect("needs no history").activation(), Current);
    let step = |layer: Fp8Linear<B>, x: Tensor<B, 2>| {
        let grads = layer.forward(x).powf_scalar(2.0).mean().backward();
        let grads = GradientsParams::from_grads(grads, &layer);
        Fp8Optimizer::new(SgdConfig::new().init()).step(0.01, layer, grads)
    };
    for poison in [f32::NAN, f32::INFINITY] {
        let x = tensor::<B, 2>(&[[poison; 32], [1.0; 32]].concat(), [2, 32]);
        refused(step(layer.clone(), x).freeze(), ["not finite", "freeze_with"]);
    }
    let mut random = Random(9);
    for amax in [0.5f32, 3.0, 1.0] {
        layer = step(layer, tensor(&random.with_amax(amax, 8 * 32), [8, 32]));
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
