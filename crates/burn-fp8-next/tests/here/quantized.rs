//! Burn 0.23's quantized tensors with values in FP8, on the served device beside Flex: codes and scales, products, gradients, views, records.

use burn::module::{Module, ParamGroup, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
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

    // Four codes in a word is what Burn has where nobody asks for another store.
    let words = QuantScheme::default().with_value(E4M3);
    assert_eq!(words.store, QuantStore::PackedU32(0));
    let of = |value| words.with_value(value).with_store(QuantStore::Native);
    vec![
        of(E4M3).per_tensor(F32),
        words,
        words.per_block([32], UE8M0),
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

/// A layer whose weights are quantized, on this device.
fn layer(device: &Device, scheme: QuantScheme) -> Linear {
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    of_numbers().fork(device).quantize_weights(&mut quantizer)
}

fn of_numbers() -> Linear {
    let local = LinearConfig::new(INPUTS, OUTPUTS).init(&Device::flex());
    let weight = tensor(&smooth([INPUTS, OUTPUTS], 3), [INPUTS, OUTPUTS], &Device::flex());
    let bias = tensor(&smooth([OUTPUTS], 8), [OUTPUTS], &Device::flex());
    let bias = local.bias.map(|unset| unset.map(|_| bias));
    Linear { weight: local.weight.map(|_| weight), bias }
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
    let bias = values(layer.bias.as_ref().expect("it has one").val().dequantize());
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
            assert_eq!(data.dtype(), q.dtype());
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

/// Rows and columns that are no whole words, one dimension, three of them, and nothing but zeros: as many numbers as Flex has, and the same.
#[test]
fn other_shapes_are_those_of_flex() {
    fn compare<const D: usize>(scheme: &QuantScheme, x: &[f32], shape: [usize; D]) {
        let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
            let q = tensor(x, shape, &device).quantize_dynamic(scheme);
            let data = q.clone().into_data();
            let again = Tensor::<D>::from_data(data.clone(), &device);
            let codes = data.as_bytes()[..x.len()].to_vec();
            (codes, [q, again].map(|q| bits(&values(q.dequantize()))))
        });
        assert_same(&ours, &burns, (scheme, shape));
        assert_same(&ours.1[0], &ours.1[1], (scheme, shape));
    }
    let schemes = schemes();
    for scheme in &schemes[..2] {
        compare(scheme, &wide([3, 10], 1), [3, 10]);
        compare(scheme, &wide([7], 1), [7]);
    }
    for scheme in &schemes {
        // Of several rows, and one dimension, Burn has no data to read.
        if scheme.block_size().is_none_or(|size| size.as_slice().len() == 1) {
            compare(scheme, &wide([64], 2), [64]);
        }
        compare(scheme, &wide([2, 32, 64], 3), [2, 32, 64]);
        compare(scheme, &wide([1, 32, 64], 4), [1, 32, 64]);
        compare(scheme, &[0.0; 64 * 64], [64, 64]);
    }
}

/// Of finite elements, though Burn's client measures those that are not, too.
#[test]
fn scales_are_those_of_finite_elements() {
    for scheme in schemes() {
        let mut x = smooth([32, 64], 3);
        [x[5], x[700], x[1500]] = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
        let q = tensor(&x, [32, 64], &device::flex()).quantize_dynamic(&scheme);
        let numbers = values(q.dequantize());
        let step = if format_of(scheme) == Fp8Format::E5M2 { 0.125 } else { 0.0625 };
        for (at, (x, found)) in x.iter().zip(&numbers).enumerate() {
            match x.is_finite() {
                true => assert!((x - found).abs() <= step * x.abs() + 2e-3, "{at} {scheme:?}"),
                false => assert!(!found.is_finite(), "{at} {scheme:?}"),
            }
        }
    }
}

/// Blocks at the ends of rows and columns are cut off, and a row is in blocks of columns.
#[test]
fn what_is_not_held_is_flexs() {
    let native = QuantScheme::default().with_value(QuantValue::E4M3);
    let native = native.with_store(QuantStore::Native);
    let scheme = native.per_block([16, 16], ScaleDtype::F32);
    let codes: Vec<i8> = (0..20 * 40).map(|i| (i % 100) as i8).collect();
    let scales = [0.5, 1.0, 2.0, 0.25, 3.0, 4.0];
    let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
        let data = TensorData::quantized(codes.clone(), [20, 40], scheme, &scales, None);
        let q = Tensor::<2>::from_data(data, &device);
        let row = tensor(&smooth([256], 3), [256], &device).quantize_dynamic(&scheme);
        let square = row.clone().reshape([16, 16]);
        let rows = row.slice([0..64]).expand([16, 64]);
        assert_eq!(square.clone().into_data().dtype(), square.dtype());
        assert_eq!(rows.clone().into_data().dtype(), rows.dtype());
        [q, square, rows].map(|q| bits(&values(q.dequantize())))
    });
    assert_same(ours, burns, scheme);
}

#[test]
fn a_scale_of_zero_is_one_of_zeros() {
    let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
    let scheme = scheme.with_store(QuantStore::Native).per_block([32], ScaleDtype::F32);
    let data =
        |codes: [i8; 64]| TensorData::quantized(codes.to_vec(), [2, 32], scheme, &[0.0, 0.5], None);
    let mut codes = [0; 64];
    codes[32] = 0x38;
    let read = Tensor::<2>::from_data(data(codes), &device::flex());
    let numbers = values(read.dequantize());
    assert!(numbers[32] == 0.5 && numbers.iter().sum::<f32>() == 0.5);
}

/// What this crate holds no tensors of is Flex's: scales of scales, those of UE4M3, and blocks of three dimensions.
#[test]
fn other_schemes_of_fp8_are_those_of_flex() {
    use ScaleDtype::{F32, UE4M3};

    let native = QuantScheme::default().with_value(QuantValue::E4M3);
    let native = native.with_store(QuantStore::Native);
    for scheme in [
        native.per_block([16], UE4M3).per_tensor(F32),
        native.per_block([16], UE4M3),
        native.per_block([2, 1, 32], F32),
    ] {
        let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
            let q = tensor(&smooth([2, 32, 64], 9), [2, 32, 64], &device).quantize_dynamic(&scheme);
            let data = q.clone().into_data().as_bytes().to_vec();
            (data, bits(&values(q.dequantize())))
        });
        assert_same(ours, burns, scheme);
    }
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

/// Where gradients are asked for Burn dequantizes the weight: then it is one of numbers.
#[test]
fn gradients_reach_the_input() {
    let exact = device::flex_with(Fp8Config::off()).unwrap().autodiff();
    let served = device::flex().autodiff();
    let data = smooth([32, INPUTS], 7);
    for scheme in schemes() {
        let layer = |device: &Device| {
            let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
            let layer = of_numbers().fork(&device.clone().without_autodiff());
            layer.quantize_weights(&mut quantizer)
        };
        let step = |device: &Device| {
            let x = tensor(&data, [32, INPUTS], device).require_grad();
            let (result, report) = device::trace(device, || {
                let y = layer(device).forward(x.clone());
                let gradients = ops::backward(y.clone().sum());
                let gradient = x.grad(&gradients);
                (y, gradient.expect("Burn 0.23 has gradients past quantized weights"))
            });
            (result.0.inner(), values(result.1), report)
        };
        let weight = values(layer(&exact).weight.val().dequantize());
        let row: Vec<f32> = weight.chunks(OUTPUTS).map(|row| row.iter().sum()).collect();
        let (y, gradient, report) = step(&exact);
        assert_eq!(report.fp8().count(), 0, "{report}");
        assert_near(y, &data, &layer(&exact), &format!("{scheme:?}"));
        assert_close(&gradient, &row.repeat(32), 1e-5, &format!("{scheme:?}"));
        let (_, gradient, report) = step(&served);
        assert_eq!(report.fp8().count(), 2, "{report}");
        assert_close(&gradient, &row.repeat(32), 0.15, &format!("{scheme:?}"));
    }
}

#[test]
fn views_move_codes() {
    for scheme in schemes() {
        let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
            let q = tensor(&wide([64, 96], 9), [64, 96], &device).quantize_dynamic(&scheme);
            let moved = [
                q.clone().transpose(),
                q.clone().permute([1, 0]),
                q.clone().slice([32..64, 0..96]),
                q.clone().unsqueeze::<3>().swap_dims(1, 2).reshape([96, 64]),
            ];
            // A flip of blocks, where Flex quantizes again.
            let flipped = bits(&values(q.flip([0, 1]).dequantize()));
            let moved = moved.map(|q| {
                let data = q.clone().into_data();
                assert_eq!(data.dtype(), q.dtype());
                let read = Tensor::<2>::from_data(data, &Device::flex());
                [q, read].map(|q| (q.dims(), bits(&values(q.dequantize()))))
            });
            (moved, flipped)
        });
        assert_eq!(ours.0[0][0].0, [96, 64]);
        for (view, (ours, burns)) in ours.0.iter().zip(&burns.0).enumerate() {
            assert_same(ours, burns, (view, scheme));
            assert_same(&ours[0], &ours[1], (view, scheme));
        }
        let q = tensor(&wide([64, 96], 9), [64, 96], &Device::flex()).quantize_dynamic(&scheme);
        assert_same(&ours.1, &bits(&values(q.dequantize().flip([0, 1]))), scheme);
    }
}

/// Codes of one matrix of several, blocks that leave the last two dimensions, and rows that are gathered.
#[test]
fn views_of_three_dimensions_are_those_of_flex() {
    for scheme in schemes() {
        let [ours, burns] = [device::flex(), Device::flex()].map(|device| {
            let x = wide([32, 32, 64], 9);
            let q = tensor(&x, [32, 32, 64], &device).quantize_dynamic(&scheme);
            let at = |index: usize| (index * 7 % 32) as i32;
            let indices: Vec<i32> = (0..32 * 32 * 64).map(at).collect();
            let indices = TensorData::new(indices, [32, 32, 64]);
            let indices = Tensor::<3, Int>::from_data(indices, &device);
            let moved =
                [q.clone().permute([1, 0, 2]), q.clone().swap_dims(0, 2), q.gather(0, indices)];
            moved.map(|q| {
                let dtype = q.dtype();
                assert_eq!(q.clone().into_data().dtype(), dtype);
                (q.dims(), bits(&values(q.dequantize())))
            })
        });
        assert_same(ours, burns, scheme);
    }
}

#[test]
fn records_go_to_plain_burn_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let places = [device::flex(), Device::flex()];
    let x = smooth([16, INPUTS], 4);
    for (at, scheme) in schemes().into_iter().enumerate() {
        for [from, to] in [[0, 1], [1, 0], [0, 0]] {
            // Burn reads no bias that is quantized in blocks of several rows.
            let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
            let weight = ParamGroup::from_path("weight");
            let saved = of_numbers().fork(&places[from]);
            let saved = saved.quantize_weights_group(&mut quantizer, weight);
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
            let bias = |it: &Linear| bits(&values(it.bias.as_ref().unwrap().val().dequantize()));
            assert_eq!(bias(&again), bias(&linear));
        }
    }
    let activation = ActivationScale::Current;
    let served = layer(&places[1], schemes()[0]);
    says(FrozenLinear::from_quantized(&served, activation).unwrap_err(), ["use Device::flex()"]);
    for (scheme, words) in [
        (schemes()[3], ["E5M2", "quantized to E4M3"]),
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
