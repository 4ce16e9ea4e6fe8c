//! Frozen layers: those of checkpoints, with the weights, bit for bit, and the results that burn-fp8 has on Burn 0.21; and as modules of Burn 0.22.

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use burn_fp8_next::burn_fp8_checkpoint::{
    Activations, Checkpoint, Export, QuantizedLinear, Scales,
};
use burn_fp8_next::nn::{ActivationScale, FrozenLinear};
use burn_fp8_next::report::HighPrecision;
use burn_fp8_next::{Execution, Fp8Config, Granularity, high_precision, trace};

use crate::common::*;

type Old = burn_021::backend::Flex;
type OldLayer = burn_fp8::nn::FrozenLinear<Old>;

/// One layer of a Llama each, as these libraries and options write it.
const CHECKPOINTS: [&str; 8] = [
    "ct_tensor_static",
    "ct_channel_dynamic",
    "ct_block",
    "ct_mxfp8",
    "fp8_block",
    "fp8_block_ue8m0",
    "fp8_tensor_static",
    "modelopt",
];

fn golden(name: &str) -> PathBuf {
    let goldens = "../burn-fp8-checkpoint/tests/golden";
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(goldens).join(name)
}

/// The same up to the order of sums: burn-fp8 holds codes as files have them, this crate row by row.
const SUMS: f32 = 2e-6;

/// Numbers of several magnitudes, an outlier, and zeros.
fn input(rows: usize, columns: usize) -> Vec<f32> {
    let at = |i: usize| match i % 17 {
        0 => 0.0,
        5 => 40.0,
        j => ((i * 2654435761) % 1000) as f32 / 500.0 - 1.0 + j as f32 * 1e-3,
    };
    (0..rows * columns).map(at).collect()
}

fn old_tensor(values: &[f32], shape: [usize; 2]) -> burn_021::tensor::Tensor<Old, 2> {
    let data = burn_021::tensor::TensorData::new(values.to_vec(), shape);
    burn_021::tensor::Tensor::from_data(data, &Default::default())
}

fn old_values<const D: usize>(tensor: burn_021::tensor::Tensor<Old, D>) -> Vec<f32> {
    tensor.into_data().to_vec().expect("f32")
}

#[test]
fn layers_of_checkpoints_are_those_of_burn_021() {
    for name in CHECKPOINTS {
        let checkpoint = Checkpoint::open(golden(name)).expect(name);
        for info in checkpoint.layers() {
            let place = format!("{name}, {}", info.name);
            let layer = FrozenLinear::from_checkpoint(&checkpoint, &info.name, &Device::flex());
            let layer = layer.expect(&place);
            let old = OldLayer::from_checkpoint(&checkpoint, &info.name, &Default::default());
            let old = old.expect(&place);
            assert_eq!(layer.dims(), old.dims(), "{place}");
            let [k, _] = layer.dims();
            assert_eq!(bits(&values(layer.weight())), bits(&old_values(old.weight())), "{place}");
            for (rows, execution) in
                [(1, Execution::Auto), (5, Execution::Auto), (5, Execution::FakeQuantized)]
            {
                let x = input(rows, k);
                let run = || layer.forward(tensor(&x, [rows, k], &Device::flex()));
                let y = Fp8Config::default().with_execution(execution).scope(run);
                let old_run = || old.forward(old_tensor(&x, [rows, k]));
                let config = burn_fp8::Fp8Config::default().with_execution(match execution {
                    Execution::FakeQuantized => burn_fp8::Execution::FakeQuantized,
                    _ => burn_fp8::Execution::Auto,
                });
                let expected = old_values(config.scope(old_run));
                assert!(expected.iter().any(|x| *x != 0.0), "{place}");
                assert_close(
                    &values(y),
                    &expected,
                    SUMS,
                    &format!("{place}, {rows} rows, {execution:?}"),
                );
            }
        }
    }
}

#[test]
fn a_layer_made_from_a_weight_is_that_of_burn_021() {
    let (device, weight, bias) = (Device::flex(), input(48, 20), input(1, 20));
    for activation in ["static", "current"] {
        let (ours, theirs) = match activation {
            "static" => (
                ActivationScale::from_amax(40.0).expect("finite"),
                burn_fp8::nn::ActivationScale::from_amax(40.0).expect("finite"),
            ),
            _ => (ActivationScale::Current, burn_fp8::nn::ActivationScale::Current),
        };
        let new_bias = tensor(&bias, [20], &device);
        let layer =
            FrozenLinear::from_weight(tensor(&weight, [48, 20], &device), Some(new_bias), ours);
        let old_bias = old_tensor(&bias, [1, 20]).reshape([20]);
        let old = OldLayer::from_weight(old_tensor(&weight, [48, 20]), Some(old_bias), theirs);
        let (layer, old, x) = (layer.expect("good"), old.expect("good"), input(3, 48));
        let y = values(layer.forward(tensor(&x, [3, 48], &device)));
        assert_close(&y, &old_values(old.forward(old_tensor(&x, [3, 48]))), SUMS, activation);
        assert_eq!(layer.bytes(), 48 * 20 + 4 * 21);
    }
}

fn layer(device: &Device) -> FrozenLinear {
    let weight = Tensor::<2>::random([32, 24], Distribution::Normal(0.0, 1.0), device);
    FrozenLinear::from_weight(weight, None, ActivationScale::Current).expect("finite")
}

#[test]
fn the_gradient_of_the_input_is_that_of_the_dequantized_weight_and_the_layer_has_none() {
    let device = Device::flex().autodiff();
    let layer = layer(&device);
    let x = Tensor::<2>::random([4, 32], Distribution::Default, &device).require_grad();
    let seed = Tensor::<2>::random([4, 24], Distribution::Default, &device);
    let grads = (layer.forward(x.clone()) * seed.clone()).sum().backward();
    let expected = values(seed.inner().matmul(layer.valid().weight().transpose()));
    for (ours, expected) in values(x.grad(&grads).expect("reached")).into_iter().zip(expected) {
        assert!((ours - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{ours} {expected}");
    }
    let record = layer.clone().train();
    let grads = record.forward(x.clone()).sum().backward();
    assert!(x.grad(&grads).is_some());
}

#[test]
fn a_record_holds_codes_and_scales_and_loads_into_a_layer_made_in_the_same_way() {
    let device = Device::flex();
    let (saved, other) = (layer(&device), layer(&device));
    let x = tensor(&input(2, 32), [2, 32], &device);
    let expected = bits(&values(saved.forward(x.clone())));
    assert_ne!(bits(&values(other.forward(x.clone()))), expected);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("layer");
    saved.clone().save_file(&path).expect("written");
    let loaded = other.load_file(&path);
    assert_eq!(bits(&values(loaded.forward(x.clone()))), expected);
    assert_eq!(bits(&values(saved.fork(&device).forward(x.clone()))), expected);

    // A static scale of inputs is a part of the record; that scales are powers of two, of the layer.
    let with = |scale| {
        let weight = Tensor::<2>::random([32, 24], Distribution::Normal(0.0, 1.0), &device);
        FrozenLinear::from_weight(weight, None, ActivationScale::Static(scale)).expect("finite")
    };
    let saved = with(0.25);
    saved.clone().save_file(&path).expect("written");
    let loaded = with(0.5).load_file(&path);
    assert_eq!(loaded.activation(), ActivationScale::Static(0.25));
    assert_eq!(bits(&values(loaded.forward(x.clone()))), bits(&values(saved.forward(x))));
    let checkpoint = Checkpoint::open(golden("ct_mxfp8")).expect("golden");
    let name = &checkpoint.layers()[0].name;
    let load = || FrozenLinear::from_checkpoint(&checkpoint, name, &device).expect("golden");
    let powers_of_two = load();
    load().save_file(&path).expect("written");
    let again = powers_of_two.clone().load_file(&path);
    assert_eq!(bits(&values(again.weight())), bits(&values(load().weight())));

    // Scales of one for each row, made as powers of two, do not take a record of any others.
    let made = |scale: f32| {
        let scales = Scales::new([32, 32], [1, 32], vec![scale; 32]).expect("positive");
        let layer = QuantizedLinear::new([32, 32], vec![0x38; 1024], scales, None, Activations::Mx);
        FrozenLinear::from_published(layer.expect("numbers"), &device)
    };
    made(0.3).save_file(&path).expect("written");
    let load = || made(0.5).load_file(&path).forward(Tensor::<2>::ones([1, 32], &device));
    says(panic_of(load), ["powers of two"]);
}

/// One element that is NaN is seen, and allowed.
#[test]
fn a_weight_with_a_nan_is_what_it_is() {
    let device = Device::flex();
    let mut numbers = input(32, 16);
    numbers[3] = f32::NAN;
    let weight = tensor(&numbers, [32, 16], &device);
    let layer = FrozenLinear::from_weight(weight, None, ActivationScale::Current).expect("some");
    let nans: Vec<_> = values(layer.weight()).iter().map(|value| value.is_nan()).collect();
    assert_eq!(nans.iter().position(|nan| *nan), Some(3));
    assert_eq!(nans.iter().filter(|nan| **nan).count(), 1);
    assert!(layer.to_published().is_err());
}

#[test]
fn a_trace_tells_what_ran_and_high_precision_is_obeyed() {
    let device = Device::flex();
    let layer = layer(&device);
    let x = tensor(&input(2, 32), [2, 32], &device);
    let (_, report) = trace(|| layer.forward(x.clone()));
    let product = report.fp8().next().expect("one product");
    let operands = [&product.lhs, &product.rhs].map(|operand| operand.as_ref().expect("in FP8"));
    assert!(operands.iter().all(|operand| operand.granularity == Granularity::PerTensor));
    let (y, report) = high_precision(|| trace(|| layer.forward(x.clone())));
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert!(matches!(reasons[..], [HighPrecision::Off]), "{reasons:?}");
    assert_eq!(values(y), values(x.clone().matmul(layer.weight())));
    let half = layer.forward(x.cast(FloatDType::BF16));
    assert_eq!(half.dtype(), DType::BF16);
    assert_eq!(layer.forward(Tensor::<3>::zeros([0, 2, 32], &device)).dims(), [0, 2, 24]);
}

#[test]
fn what_is_written_is_read_again_and_bad_input_is_told() {
    let device = Device::flex();
    let layer = layer(&device);
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("model");
    let published = layer.to_published().expect("finite");
    Export::new()
        .linear("layer", &published)
        .and_then(|export| export.write(&folder, "{}"))
        .expect("written");
    let checkpoint = Checkpoint::open(&folder).expect("just written");
    let again = FrozenLinear::from_checkpoint(&checkpoint, "layer", &device).expect("written");
    assert_eq!(bits(&values(again.weight())), bits(&values(layer.weight())));
    says(FrozenLinear::from_checkpoint(&checkpoint, "lair", &device).unwrap_err(), ["lair"]);

    let weight = |number| tensor(&[number; 4], [2, 2], &device);
    let bias = || Some(Tensor::<1>::zeros([3], &device));
    for (weight, bias, activation, part) in [
        (weight(f32::NAN), None, ActivationScale::Current, "finite"),
        (weight(1.0), bias(), ActivationScale::Current, "bias"),
        (weight(1.0), None, ActivationScale::Static(0.0), "input_scale"),
        (Tensor::zeros([0, 2], &device), None, ActivationScale::Current, "no elements"),
    ] {
        says(FrozenLinear::from_weight(weight, bias, activation).unwrap_err(), [part]);
    }
    let nothing: [Tensor<1>; 0] = [];
    assert!(ActivationScale::from_samples(nothing).is_err());
}
