//! Burn 0.23's quantized tensors with values in FP8, on the served device beside Flex: codes and scales, products, gradients, views, records.

use burn::module::{Module, ParamGroup, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_fp8_next::burn_fp8_checkpoint::Checkpoint;
use burn_fp8_next::burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_next::nn::{ActivationScale, FrozenLinear};
use burn_fp8_next::{Fp8Config, GemmRole, Recipe, device, ops};

use crate::common::*;
use crate::golden::crates;

const INPUTS: usize = 64;
const OUTPUTS: usize = 96;

/// Every kind of block and of scales that both have.
fn schemes() -> Vec<QuantScheme> {
    use QuantValue::{E4M3, E5M2};
    use ScaleDtype::{BF16, F16, F32, UE8M0};

    let of = |value| QuantScheme::default().with_value(value).with_store(QuantStore::Native);
    vec![
        of(E4M3).per_tensor(F32),
        of(E5M2).per_tensor(BF16),
        of(E4M3).per_tensor(UE8M0),
        of(E4M3).per_block([32], UE8M0),
        of(E5M2).per_block([1, 32], F16),
        of(E4M3).per_block([16, 16], F32),
        of(E4M3).per_block([32, 1], BF16),
    ]
}

/// Magnitudes over forty powers of two, both signs, ties among them.
fn wide<const D: usize>(shape: [usize; D], seed: usize) -> Vec<f32> {
    (0..shape.iter().product())
        .map(|i: usize| {
            let i = i * 13 + seed;
            let magnitude = (1.0 + (i % 128) as f32 / 128.0) * 2f32.powi((i * 7 % 41) as i32 - 30);
            if i % 3 == 0 { -magnitude } else { magnitude }
        })
        .collect()
}

fn smooth<const D: usize>(shape: [usize; D], seed: usize) -> Vec<f32> {
    (0..shape.iter().product()).map(|i: usize| ((i * 37 + seed) as f32 * 0.7).sin()).collect()
}

/// A layer, and its quantized weights, on this device.
fn layer(device: &Device, scheme: QuantScheme) -> Linear {
    let local = LinearConfig::new(INPUTS, OUTPUTS).init(&Device::flex());
    let weight = tensor(&smooth([INPUTS, OUTPUTS], 3), [INPUTS, OUTPUTS], &Device::flex());
    let bias = tensor(&smooth([OUTPUTS], 8), [OUTPUTS], &Device::flex());
    let bias = local.bias.map(|unset| unset.map(|_| bias));
    let layer = Linear { weight: local.weight.map(|_| weight), bias };
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    let weight = ParamGroup::from_path("weight");
    layer.fork(device).quantize_weights_group(&mut quantizer, weight)
}

fn format_of(scheme: QuantScheme) -> Fp8Format {
    match scheme.value {
        QuantValue::E5M2 => Fp8Format::E5M2,
        _ => Fp8Format::E4M3,
    }
}

/// Without all numbers in the message.
#[track_caller]
fn assert_same<T: PartialEq>(ours: T, burns: T, what: impl std::fmt::Debug) {
    assert!(ours == burns, "{what:?}");
}

/// Products of numbers in f64, `[rows, INPUTS]` times the numbers of a quantized weight, with the largest sum of magnitudes.
fn reference(x: &[f32], layer: &Linear) -> (Vec<f32>, f32) {
    let weight = values(layer.weight.val().dequantize());
    let bias = values(layer.bias.as_ref().expect("it has one").val());
    let mut most = 0f64;
    let outputs = x.chunks(INPUTS).flat_map(|row| {
        let most = &mut most;
        (0..OUTPUTS)
            .map(|n| {
                let terms = row.iter().enumerate();
                let terms = terms.map(|(k, x)| f64::from(*x) * f64::from(weight[k * OUTPUTS + n]));
                let terms: Vec<f64> = terms.collect();
                *most = most.max(terms.iter().map(|term| term.abs()).sum());
                (terms.iter().sum::<f64>() + f64::from(bias[n])) as f32
            })
            .collect::<Vec<_>>()
    });
    (outputs.collect(), most as f32)
}

/// That an output is the product of these numbers, but for the order of sums.
#[track_caller]
fn assert_near<const D: usize>(y: Tensor<D>, x: &[f32], layer: &Linear, what: &str) {
    let (expected, most) = reference(x, layer);
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    assert_close(&values(y), &expected, 1e-6 * most / largest, what);
}

#[test]
fn codes_and_scales_are_those_of_flex_to_the_bit() {
    let served = device::flex();
    for scheme in schemes() {
        let x = wide([64, 96], 5);
        let [ours, burns] = [&served, &Device::flex()].map(|device| {
            let q = tensor(&x, [64, 96], device).quantize_dynamic(&scheme);
            let data = q.clone().into_data();
            (data.dtype(), data.as_bytes().to_vec(), bits(&values(q.dequantize())))
        });
        assert_same(&ours, &burns, scheme);
        // Data of one is data of the other.
        let data = TensorData::from_bytes_vec(burns.1, [64, 96], burns.0);
        let read = Tensor::<2>::from_data(data.clone(), &served);
        assert_eq!(bits(&values(read.clone().dequantize())), burns.2, "{scheme:?}");
        assert_eq!(read.into_data().as_bytes(), data.as_bytes(), "{scheme:?}");
    }
}

/// The scheme that Burn has where nobody asks for another store: four codes in a word.
#[test]
fn words_of_codes_are_codes() {
    let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
    assert_ne!(scheme.store, QuantStore::Native);
    let x = smooth([3, 10], 1);
    let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
        let q = tensor(&x, [3, 10], &device).quantize_dynamic(&scheme);
        let again = Tensor::<2>::from_data(q.clone().into_data(), &device);
        [q, again].map(|q| bits(&values(q.dequantize())))
    });
    assert_same(&ours, &burns, scheme);
    assert_same(&ours[0], &ours[1], scheme);
}

#[test]
fn a_layer_multiplies_by_its_codes() {
    let served = device::flex();
    let x = smooth([2 * 16, INPUTS], 11);
    for scheme in schemes() {
        let layer = layer(&served, scheme);
        assert!(matches!(layer.weight.val().dtype(), DType::QFloat(_)), "{scheme:?}");
        let input = || tensor(&x, [2, 16, INPUTS], &served);
        let (y, report) = device::trace(&served, || layer.forward(input()));
        assert_eq!(y.dims(), [2, 16, OUTPUTS]);
        let products: Vec<_> = report.fp8().collect();
        assert_eq!(products.len(), 1, "{scheme:?}: {report}");
        assert_eq!(products[0].role, GemmRole::Output);
        assert_eq!(products[0].rhs.map(|it| it.format), Some(format_of(scheme)), "{report}");

        // The input stays as it is where FP8 is off: what is left is the order of sums.
        let y = device::scope(&served, &Fp8Config::off(), || layer.forward(input()));
        assert_near(y, &x, &layer, &format!("{scheme:?}"));
    }
}

#[test]
fn inputs_are_quantized_as_the_recipe_says() {
    let served = device::flex_with(Fp8Config::default().with_recipe(Recipe::rowwise())).unwrap();
    let layer = layer(&served, schemes()[0]);
    let x: Vec<f32> = smooth([32, INPUTS], 2);
    let rounded: Vec<f32> = x
        .chunks(INPUTS)
        .flat_map(|row| {
            let amax = row.iter().fold(0f32, |amax, x| amax.max(x.abs()));
            let scale = amax / 448.0;
            let of = move |x: &f32| {
                let code = Fp8Format::E4M3.encode(x / scale, Overflow::Saturate);
                Fp8Format::E4M3.decode(code) * scale
            };
            row.iter().map(of).collect::<Vec<_>>()
        })
        .collect();
    let y = layer.forward(tensor(&x, [32, INPUTS], &served));
    // It is no product of the input as it is.
    let found = values(y.clone());
    assert!(reference(&x, &layer).0.iter().zip(&found).any(|(a, b)| (a - b).abs() > 1e-3));
    assert_near(y, &rounded, &layer, "rows of the input");
}

#[test]
fn gradients_reach_the_input() {
    let served = device::flex();
    let layer = layer(&served, schemes()[0]);
    let weight = values(layer.weight.val().dequantize());
    let x = tensor(&smooth([32, INPUTS], 7), [32, INPUTS], &served.clone().autodiff());
    let x = x.require_grad();
    let gradients = ops::backward(layer.forward(x.clone()).sum());
    let found = values(x.grad(&gradients).expect("Burn 0.23 has gradients past quantized weights"));
    let row: Vec<f32> = weight.chunks(OUTPUTS).map(|row| row.iter().sum()).collect();
    // The output gradient is ones; its product may run in FP8, where the weight is quantized once more.
    assert_close(&found, &row.repeat(32), 0.1, "the gradient");
}

#[test]
fn views_move_codes() {
    for scheme in schemes() {
        let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
            let q = tensor(&wide([64, 96], 9), [64, 96], &device).quantize_dynamic(&scheme);
            let moved = [
                q.clone().transpose(),
                q.clone().slice([32..64, 0..96]),
                q.clone().unsqueeze::<3>().repeat_dim(0, 1).reshape([64, 96]),
                q.clone().flip([0, 1]),
            ];
            moved.map(|q| (q.dims(), bits(&values(q.dequantize()))))
        });
        assert_eq!(ours[0].0, [96, 64]);
        // Flips of blocks are where Burn quantizes again; the others are the same numbers.
        assert_same(&ours[..3], &burns[..3], scheme);
        let q = tensor(&wide([64, 96], 9), [64, 96], &device::flex()).quantize_dynamic(&scheme);
        let flipped = bits(&values(q.dequantize().flip([0, 1])));
        assert_same(&ours[3].1, &flipped, scheme);
    }
}

#[test]
fn records_go_to_plain_burn_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let places = [device::flex(), Device::flex()];
    let x = smooth([16, INPUTS], 4);
    for (at, scheme) in schemes().into_iter().enumerate() {
        for [from, to] in [[0, 1], [1, 0], [0, 0]] {
            let saved = layer(&places[from], scheme);
            let path = folder.path().join(format!("{at}-{from}-{to}"));
            saved.clone().into_record().save(&path).expect("saved");
            let record = burn::store::ModuleRecord::load(&path).expect("loaded");
            let fresh = LinearConfig::new(INPUTS, OUTPUTS).init(&places[to]);
            let loaded = fresh.load_record(record);
            let [before, after] = [&saved, &loaded].map(|layer| layer.weight.val());
            assert_eq!(before.dtype(), after.dtype(), "{scheme:?}");
            let [before, after] = [before, after].map(|weight| {
                (weight.clone().into_data().as_bytes().to_vec(), bits(&values(weight.dequantize())))
            });
            assert_same(before, after, (scheme, from, to));
            let multiply = || loaded.forward(tensor(&x, [16, INPUTS], &places[to]));
            let y = match to {
                0 => device::scope(&places[to], &Fp8Config::off(), multiply),
                _ => multiply(),
            };
            assert_near(y, &x, &loaded, &format!("{scheme:?}, {from} to {to}"));
        }
    }
}

#[test]
fn integers_are_the_backends() {
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_store(QuantStore::Native);
    let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
        let layer = layer(&device, scheme);
        let data = layer.weight.val().into_data().as_bytes().to_vec();
        (
            data,
            bits(&values(layer.forward(tensor(&smooth([16, INPUTS], 4), [16, INPUTS], &device)))),
        )
    });
    assert_same(ours, burns, scheme);
}

/// Layers that plain Burn has quantized, as this crate's own, and back.
#[test]
fn a_frozen_layer_has_the_codes_of_burns() {
    let x = smooth([16, INPUTS], 4);
    let places = [Device::flex(), device::flex()];
    for scheme in schemes().into_iter().filter(|scheme| scheme.value == QuantValue::E4M3) {
        let linear = layer(&places[0], scheme);
        let frozen = FrozenLinear::from_quantized(&linear, ActivationScale::Unquantized).unwrap();
        let numbers = |weight: Tensor<2>| bits(&values(weight.dequantize()));
        assert_same(numbers(frozen.weight()), numbers(linear.weight.val()), scheme);
        let y = frozen.forward(tensor(&x, [16, INPUTS], &places[0]));
        assert_near(y, &x, &linear, &format!("{scheme:?}"));
        for place in &places {
            let again = frozen.clone().into_quantized(place).unwrap();
            assert_same(numbers(again.weight.val()), numbers(linear.weight.val()), scheme);
            let bias = |layer: &Linear| bits(&values(layer.bias.as_ref().unwrap().val()));
            assert_eq!(bias(&again), bias(&linear));
        }
    }
    let activation = ActivationScale::Current;
    for (scheme, words) in [
        (schemes()[1], ["E5M2", "quantized to E4M3"]),
        (schemes()[0].with_value(QuantValue::Q8S), ["Q8S", "quantized to E4M3"]),
        (schemes()[0].per_block([16], ScaleDtype::UE4M3), ["UE4M3", "one level of scales"]),
    ] {
        let linear = layer(&places[0], scheme);
        says(FrozenLinear::from_quantized(&linear, activation).unwrap_err(), words);
    }
}

#[test]
fn published_layers_become_burns() {
    let read = |folder: &str, name: &str| {
        let folder = crates().join("burn-fp8-checkpoint/tests/golden").join(folder);
        let checkpoint = Checkpoint::open(folder).expect("golden");
        let name = format!("model.layers.0.{name}");
        FrozenLinear::from_checkpoint(&checkpoint, &name, &Device::flex()).expect("a layer")
    };
    for folder in ["fp8_tensor_static", "ct_block", "ct_channel_dynamic", "ct_mxfp8"] {
        let frozen = read(folder, "self_attn.o_proj");
        let expected = bits(&values(frozen.weight()));
        for place in [Device::flex(), device::flex()] {
            let linear = frozen.clone().into_quantized(&place).unwrap();
            assert!(matches!(linear.weight.val().dtype(), DType::QFloat(_)));
            assert_same(&bits(&values(linear.weight.val().dequantize())), &expected, folder);
        }
    }
    // Blocks of 128 do not divide it.
    let frozen = read("fp8_block", "mlp.down_proj");
    assert_eq!(frozen.dims(), [352, 256]);
    let error = frozen.into_quantized(&Device::flex()).unwrap_err();
    says(error, ["128×128", "at most 255", "[352, 256]", "keep it a FrozenLinear"]);
}
