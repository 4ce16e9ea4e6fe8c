//! Burn's own quantized tensors with values in FP8, on Flex and NdArray; and what Flex has beside: frozen layers, gradients.

use burn::tensor::TensorPrimitive;
use burn::tensor::ops::QTensorOps;
use burn::tensor::quantization::{QuantLevel, QuantParam, QuantValue};

use crate::common::quantized::*;
use crate::common::*;

tests_on_cpu!([
    codes_and_scales_are_those_of_the_definition,
    mxfp8_is_that_of_torchao,
    blocks_are_those_of_the_golden_data,
    every_code_stands_for_its_number,
    given_scales_are_kept,
    views_move_codes_and_scales,
    operations_between_are_those_of_the_numbers,
    products_are_those_of_the_numbers,
    records_hold_one_byte_an_element,
    other_ranks_hold_the_same,
    bad_input_is_refused,
]);

/// A model of Burn's own layers is a model of frozen ones, to the bit, and trains what lies before it.
#[test]
fn a_quantized_linear_layer_is_a_frozen_one() {
    type B = Fp8Backend<Flex>;
    let w = random::<B, 2>(1, [64, 48]);
    let bias = random::<B, 1>(2, [48]);
    let layer = linear::<B>(w.clone(), Some(bias.clone()));
    let scheme = of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::F32);
    let quantized =
        Linear { weight: layer.weight.map(|w| w.quantize_dynamic(&scheme)), bias: layer.bias };
    for m in [1, 8, 32, 200] {
        let x = random::<B, 2>(3, [m, 64]);
        let activation =
            if m < 16 { ActivationScale::Unquantized } else { ActivationScale::Current };
        let frozen =
            FrozenLinear::from_weight(w.clone(), Some(bias.clone()), activation).expect("good");
        let (y, report) = trace(|| values(quantized.forward(x.clone())));
        let (expected, of_frozen) = trace(|| values(frozen.forward(x)));
        assert_same(&y, &expected, &format!("{m} rows"));
        assert_eq!(report.products[0].ran, of_frozen.products[0].ran, "{m} rows");
    }
    // There and back, without a copy.
    let frozen = FrozenLinear::from_quantized(&quantized, ActivationScale::Current).expect("E4M3");
    let again = frozen.clone().into_quantized().expect("one scale");
    assert_eq!(parts(again.weight.val()), parts(quantized.weight.val()));
    assert_eq!(frozen.tensor().to_bytes(), parts(quantized.weight.val()).0);
    refused(
        FrozenLinear::from_quantized(&linear::<B>(w, None), ActivationScale::Current),
        ["F32", "from_quantized"],
    );
    // An input that is quantized, too, is not rounded a second time.
    let x = random::<B, 2>(3, [32, 64]).quantize_dynamic(&schemes()[1]);
    let exact = Exact::product(
        &wide(&values(x.clone().dequantize())),
        &wide(&values(quantized.weight.val().dequantize())),
        [32, 64, 48],
    );
    let exact = exact.plus_bias(&values(bias.clone()));
    exact.assert(&values(quantized.forward(x)), Sums::F32, "a quantized input");
    // A user's own dequantized weight is one of numbers.
    let numbers = linear::<B>(quantized.weight.val().dequantize(), None);
    let (_, report) = trace(|| numbers.forward(random::<B, 2>(3, [32, 64])));
    assert_eq!(report.products[0].lhs.map(|lhs| lhs.format), Some(E4M3), "{report}");
}

/// Margin, powers of two and format are those that a product of numbers has.
#[test]
fn inputs_are_quantized_by_the_whole_recipe() {
    type B = Fp8Backend<Flex>;
    let (x, w) = (random::<B, 2>(3, [32, 64]), random::<B, 2>(1, [64, 48]));
    let e5m2 = Formats { input: E5M2, ..Formats::E4M3 };
    for recipe in [
        Recipe::current().with_margin(2),
        Recipe::current().with_power_of_two(true),
        Recipe::current().with_formats(e5m2),
        Recipe::rowwise().with_margin(-1),
        Recipe::mxfp8(),
        Recipe::delayed().with_margin(1),
    ] {
        let config = Fp8Config::default().with_recipe(recipe);
        let lhs = |w: Tensor<B, 2>| {
            let (_, report) = trace(|| config.scope(|| x.clone().matmul(w)));
            report.products[0].lhs.expect("it is quantized")
        };
        let of_numbers = lhs(w.clone());
        assert_eq!(lhs(w.clone().quantize_dynamic(&schemes()[0])), of_numbers, "{recipe:?}");
        // Nothing multiplies E5M2 by E5M2.
        let by_e5m2 = lhs(w.clone().quantize_dynamic(&schemes()[1]));
        assert_eq!(by_e5m2.format, E4M3);
    }
}

/// Burn's `linear` dequantizes a weight to the type of the device's floats.
#[test]
fn a_weight_dequantized_to_two_bytes_is_found_by_its_codes() {
    type B = Fp8Backend<Flex>;
    let q = random::<B, 2>(1, [64, 48]).quantize_dynamic(&schemes()[0]);
    let numbers = values(q.clone().dequantize());
    for (dtype, float) in [(FloatDType::BF16, Float::Bf16), (FloatDType::F16, Float::F16)] {
        let weight = || {
            let TensorPrimitive::QFloat(codes) = q.clone().into_primitive() else { panic!() };
            Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(B::dequantize(codes, dtype)))
        };
        let x = random::<B, 2>(3, [3, 64]).cast(dtype);
        let (y, report) = trace(|| burn::tensor::module::linear(x.clone(), weight(), None));
        assert!(report.to_string().contains("only the weight is in FP8"), "{report}");
        assert_eq!(y.dtype(), DType::from(dtype));
        // Who reads it has numbers of E4M3 times a scale, rounded to the type.
        let rounded = tensor::<B, 2>(&numbers, [64, 48]).cast(dtype).cast(DType::F32);
        assert_same(&values(weight().cast(DType::F32)), &values(rounded), "decoded");
        let x = wide(&values(x.cast(DType::F32)));
        let exact = Exact::product(&x, &wide(&numbers), [3, 64, 48]).rounded(float);
        exact.assert(&values(y.cast(DType::F32)), Sums::F32, "the product");
    }
}

#[test]
fn gradients_reach_the_input_of_a_quantized_weight() {
    type B = Outer<Flex>;
    let (x, w) = (Random(3).spread(20 * 64), Random(4).spread(64 * 32));
    for scheme in schemes() {
        let q = tensor::<B, 2>(&w, [64, 32]).quantize_dynamic(&scheme);
        let grad = wide(&[1.0; 20 * 32]);
        let numbers = transpose(&wide(&values(q.clone().dequantize())), [64, 32]);
        let exact = Exact::product(&grad, &numbers, [20, 32, 64]);
        let as_layer = Linear { weight: Param::from_tensor(q.clone()), bias: None };
        for product in [0, 1] {
            let x = tensor::<B, 2>(&x, [20, 64]).require_grad();
            let y = if product == 0 {
                x.clone().matmul(q.clone())
            } else {
                as_layer.forward(x.clone())
            };
            let grads = y.sum().backward();
            exact.assert(&values(x.grad(&grads).expect("a gradient")), Sums::F32, "grad_input");
        }
        // It goes to validation and back with the model.
        let valid = as_layer.valid();
        assert_eq!(parts(valid.weight.val()), parts(q));
    }
}

/// What a user makes of a dequantized weight lies in its memory, and is another one: written to, transposed, or trained.
#[test]
fn a_weight_made_of_a_dequantized_one_is_not_taken_for_its_codes() {
    use burn::tensor::module::linear;
    type B = Outer<Flex>;
    let scheme = of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::F32);
    let q = random::<B, 2>(1, [32, 32]).quantize_dynamic(&scheme);
    // Few rows, so that no input is rounded.
    let x = random::<B, 2>(2, [3, 32]);
    let rows = wide(&values(x.clone()));
    let weight = values(q.clone().dequantize());
    let check = |y: Tensor<B, 2>, weight: &[f32], what: &str| {
        Exact::product(&rows, &wide(weight), [3, 32, 32]).assert(&values(y), Sums::F32, what);
    };
    check(linear(x.clone(), q.clone(), None), &weight, "as it is");
    let doubled: Vec<f32> = weight.iter().map(|w| 2.0 * w).collect();
    check(linear(x.clone(), q.clone().dequantize().mul_scalar(2.0), None), &doubled, "doubled");
    let turned = transpose(&weight, [32, 32]);
    check(linear(x.clone(), q.clone().dequantize().transpose(), None), &turned, "transposed");
    let trained = q.dequantize().require_grad();
    let y = linear(x, trained.clone(), None);
    check(y.clone(), &weight, "trained");
    assert!(trained.grad(&y.sum().backward()).is_some());
}
