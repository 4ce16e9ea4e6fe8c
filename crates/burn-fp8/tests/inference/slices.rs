//! Frozen layers on slices, and codes that are changed where they lie.

use burn::backend::NdArray;

use crate::common::*;

const EMULATED: Execution = Execution::FakeQuantized;

fn emulated<R>(f: impl FnOnce() -> R) -> R {
    Fp8Config::default().with_execution(EMULATED).scope(f)
}

const OUTPUTS: usize = 70;
const INPUTS: usize = 130;

/// Weights `[130, 70]` with scales of every kind; those of blocks lie row by row, or as files have them.
fn weights<B: Fp8Matmul>() -> Vec<Fp8Tensor<B, 2>> {
    let mut random = Random(5);
    let numbers = random.spread(INPUTS * OUTPUTS);
    let rows = || tensor::<B, 2>(&numbers, [OUTPUTS, INPUTS]);
    let columns = || rows().transpose();
    let blocks = |x, block| Fp8Tensor::quantize_blocks(x, E4M3, block, Recipe::blockwise());
    vec![
        Fp8Tensor::quantize(columns(), E4M3),
        Fp8Tensor::quantize_rows(rows(), E4M3).expect("rows").transpose(),
        blocks(rows(), [16, 64]).expect("blocks").transpose(),
        blocks(columns(), [64, 16]).expect("blocks"),
        Fp8Tensor::quantize(tensor::<B, 2>(&numbers, [INPUTS, OUTPUTS]), E4M3),
    ]
}

fn layers<B: Fp8Matmul>(activation: ActivationScale) -> Vec<FrozenLinear<B>> {
    let bias = Tensor::<B, 1>::from_data(
        TensorData::new(vec![0.5f32; OUTPUTS], [OUTPUTS]),
        &Default::default(),
    );
    let layer = |weight| FrozenLinear::from_tensor(weight, Some(bias.clone()), activation);
    weights().into_iter().map(|weight| layer(weight).expect("a layer")).collect()
}

const ACTIVATIONS: [ActivationScale; 6] = [
    ActivationScale::Unquantized,
    ActivationScale::Static(0.02),
    ActivationScale::Current,
    ActivationScale::PerToken,
    ActivationScale::Blocks { size: 64, power_of_two: false },
    ActivationScale::Mx,
];

fn on_slices_as_in_tensors<B: Fp8Matmul>() {
    let x = Random(9).spread(3 * INPUTS);
    for activation in ACTIVATIONS {
        for (index, layer) in layers::<B>(activation).into_iter().enumerate() {
            emulated(|| {
                let expected = values(layer.forward(tensor::<B, 2>(&x, [3, INPUTS])));
                let layer = layer.on_host().expect("Flex has codes in memory");
                assert!(layer.applies());
                let mut found = vec![f32::NAN; 3 * OUTPUTS];
                layer.linear().forward(&x, &mut found);
                assert_near(&found, &expected, &format!("{activation:?}, weight {index}"));
            });
        }
    }
}

/// But for sums in another order.
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let near = (found - expected).abs() <= 1e-6 * largest;
        assert!(near, "{what}: {found}, not {expected}");
    }
}

#[test]
fn layers_on_slices_are_as_in_tensors() {
    on_slices_as_in_tensors::<Flex>();
    on_slices_as_in_tensors::<Fp8Backend<Flex>>();
}

#[test]
fn layers_are_on_slices_where_they_would_be_multiplied_so() {
    for activation in ACTIVATIONS {
        let layer = layers::<Flex>(activation).remove(1);
        let on_host = emulated(|| layer.on_host()).expect("emulated");
        assert!(emulated(|| on_host.applies()));
        assert!(!on_host.applies(), "another execution");
        let (none, report) = trace(|| emulated(|| layer.on_host()));
        assert!(none.is_none() && report.products.is_empty(), "nothing ran");
        assert!(!trace(|| emulated(|| on_host.applies())).0);
        assert!(high_precision(|| layer.on_host()).is_none());
        // What cannot run is not refused by asking.
        let native = Fp8Config::default().with_execution(Execution::Native);
        let has_unit = matches!(implementation::<Flex>(), Implementation::MatrixUnit(_));
        let refused = match activation {
            ActivationScale::Unquantized => false,
            ActivationScale::Blocks { .. } | ActivationScale::Mx => true,
            _ => !has_unit,
        };
        assert_eq!(native.scope(|| layer.on_host()).is_none(), refused, "{activation:?}");
        let elsewhere = layers::<NdArray>(activation).remove(1);
        assert!(emulated(|| elsewhere.on_host()).is_none());
        let tracked = layers::<Autodiff<Flex>>(activation).remove(1);
        assert!(emulated(|| tracked.on_host()).is_none());
    }
}

/// The same codes, multiplied by the same kernel, where both operands have scales of whole rows, or such of equal blocks that are no powers of two; what is
/// emulated, in tensors or on slices alone, is summed in another order.
#[test]
fn a_matrix_unit_multiplies_on_slices_as_in_tensors() {
    if !matches!(implementation::<Flex>(), Implementation::MatrixUnit(_)) {
        return burn_fp8_test_support::skip("no matrix unit");
    }
    for rows in [1, 3, 40] {
        let x = Random(9).spread(rows * INPUTS);
        for activation in ACTIVATIONS {
            for (index, layer) in layers::<Fp8Backend<Flex>>(activation).into_iter().enumerate() {
                let expected = values(layer.forward(tensor(&x, [rows, INPUTS])));
                let in_blocks = [2, 3].contains(&index);
                let is_on_unit = match activation {
                    ActivationScale::Unquantized | ActivationScale::Mx => false,
                    ActivationScale::Blocks { .. } => in_blocks,
                    _ => !in_blocks,
                };
                let layer = layer.on_host().expect("on slices");
                assert_eq!(layer.linear().unit.is_some(), is_on_unit);
                let mut found = vec![f32::NAN; rows * OUTPUTS];
                layer.linear().forward(&x, &mut found);
                let what = format!("{activation:?}, weight {index}, {rows} rows");
                match is_on_unit {
                    true => assert_eq!(found, expected, "{what}"),
                    false => assert_near(&found, &expected, &what),
                }
            }
        }
    }
}

/// A unit multiplies MXFP8 in tensors, and no slices: these are no layer where nothing else may multiply it.
#[test]
fn blocks_of_32_are_not_on_slices_where_a_unit_must_multiply_them() {
    if !matches!(implementation::<Flex>(), Implementation::MatrixUnit(_)) {
        return burn_fp8_test_support::skip("no matrix unit");
    }
    let numbers = tensor::<Flex, 2>(&Random(5).spread(INPUTS * OUTPUTS), [OUTPUTS, INPUTS]);
    let weight = Fp8Tensor::quantize_blocks(numbers, E4M3, [1, 32], Recipe::mxfp8());
    let weight = weight.expect("blocks").transpose();
    let layer = FrozenLinear::from_tensor(weight, None, ActivationScale::Mx).expect("a layer");
    let native = Fp8Config::default().with_execution(Execution::Native);
    let x = Random(9).spread(INPUTS);
    let expected = native.scope(|| values(layer.forward(tensor::<Flex, 2>(&x, [1, INPUTS]))));
    assert!(native.scope(|| layer.on_host()).is_none());
    let on_slices = layer.on_host().expect("on slices");
    assert_eq!(on_slices.linear().unit, None);
    let mut found = vec![f32::NAN; OUTPUTS];
    on_slices.linear().forward(&x, &mut found);
    assert_near(&found, &expected, "MXFP8");
}

/// The memory of a view has more codes than the view.
#[test]
fn the_first_rows_of_a_tensor_are_a_weight() {
    let all = Fp8Tensor::<Flex, 2>::quantize_rows(tensor(&Random(3).spread(8 * 64), [8, 64]), E4M3);
    let weight = all.expect("rows").rows(0..4).expect("rows").transpose();
    let layer = FrozenLinear::from_tensor(weight.clone(), None, ActivationScale::Unquantized);
    let layer = layer.expect("a layer");
    let x = Random(4).spread(64);
    let expected = values(tensor::<Flex, 2>(&x, [1, 64]).matmul(weight.dequantize()));
    let found = values(layer.forward(tensor::<Flex, 2>(&x, [1, 64])));
    let mut on_slices = vec![0.0; 4];
    layer.on_host().expect("on slices").linear().forward(&x, &mut on_slices);
    for found in [found, on_slices] {
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()));
        }
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
    let by_blocks = weights::<Flex>().remove(3);
    let error = by_blocks.changed(|_, _| ()).expect_err("blocks");
    assert!(error.to_string().contains("have a scale each"), "{error}");
}
