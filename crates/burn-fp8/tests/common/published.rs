//! Published checkpoints, one layer of a Llama each, against what the libraries that wrote them make of the same weights.

use std::path::PathBuf;

use burn_fp8::checkpoint::{Activations, Checkpoint, QuantizedLinear, Scales};
use safetensors::SafeTensors;

use super::*;

/// Folders, and whether one scale serves each weight and each input.
pub const CHECKPOINTS: [(&str, bool); 8] = [
    ("ct_tensor_static", true),
    ("ct_channel_dynamic", false),
    ("ct_block", false),
    ("ct_mxfp8", false),
    ("fp8_block", false),
    ("fp8_block_ue8m0", false),
    ("fp8_tensor_static", true),
    ("modelopt", true),
];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../burn-fp8-checkpoint/tests/golden").join(name)
}

/// What a layer is to be: parts of `expected.safetensors`.
pub struct Expected(Vec<u8>);

impl Expected {
    pub fn of(name: &str) -> Self {
        Self(std::fs::read(folder(name).join("expected.safetensors")).expect("in the repository"))
    }

    /// Numbers, and their shape.
    pub fn part(&self, layer: &str, part: &str) -> (Vec<f32>, [usize; 2]) {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let view = file.tensor(&format!("{layer}/{part}")).expect("every layer has it");
        let numbers = view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        (numbers, view.shape().try_into().expect("a matrix"))
    }
}

/// Weights exactly, outputs with the activations that the file declares and with those of f32.
pub fn layers_are_those_of_their_libraries<B: Fp8Matmul>() {
    let device = Default::default();
    for (name, is_per_tensor) in CHECKPOINTS {
        let checkpoint = Checkpoint::open(folder(name)).expect(name);
        let expected = Expected::of(name);
        assert_eq!(checkpoint.layers().len(), 7, "{name}");
        for info in checkpoint.layers() {
            let place = format!("{name}, {}", info.name);
            let layer =
                FrozenLinear::<B>::from_checkpoint(&checkpoint, &info.name, &device).expect(&place);
            let (weight, [n, k]) = expected.part(&info.name, "weight");
            assert_eq!(layer.dims(), [k, n], "{place}");
            let of_file = values(layer.weight().transpose());
            assert_eq!(bits(&of_file), bits(&weight), "{place}");
            // Codes, and what their scales and a bias take.
            let others = layer.bytes() - n * k;
            assert!(others <= 4 * (n + n.max(2) * k.div_ceil(32)), "{place}: {others}");

            let (x, shape) = expected.part(&info.name, "input");
            let x = tensor::<B, 2>(&x, shape);
            let (unquantized, _) = expected.part(&info.name, "output");
            let (output, _) = expected.part(&info.name, "output_w8a8");
            let plain = high_precision(|| values(layer.forward(x.clone())));
            assert_close(&plain, &unquantized, 1e-5, &place);
            let (ours, report) = trace(|| values(layer.forward(x.clone())));
            match layer.activation() {
                ActivationScale::PerToken => rows_have_scales_of_their_own(
                    [&layer, &with_one_scale(&checkpoint, &info.name)],
                    x.clone(),
                    &output,
                    &place,
                ),
                _ => assert_close(&ours, &output, 1e-5, &place),
            }
            let [product] = &report.products[..] else { panic!("one product: {report}") };
            let operand = product.lhs.expect("in FP8");
            assert_eq!(operand.granularity == Granularity::PerTensor, is_per_tensor, "{place}");
            assert_eq!(product.ran, super::implementation::<B>(), "{place}");

            // Leading dimensions, and an empty batch.
            let [m, _] = shape;
            let batch = values(layer.forward(x.clone().reshape([m, 1, k])));
            assert_close(&batch, &ours, 1e-6, &place);
            let none = layer.forward(Tensor::<B, 2>::zeros([0, k], &device));
            assert_eq!(none.dims(), [0, n]);
        }
    }
}

/// The same layer with one scale for all activations.
fn with_one_scale<B: Fp8Matmul>(checkpoint: &Checkpoint, name: &str) -> FrozenLinear<B> {
    let layer = checkpoint.linear(name).expect("a layer");
    let (shape, scales) = (layer.shape(), layer.scales().clone());
    let bias = layer.bias().map(<[f32]>::to_vec);
    let layer =
        QuantizedLinear::new(shape, layer.into_codes(), scales, bias, Activations::PerTensor);
    FrozenLinear::from_published(layer.expect("of a layer"), &Default::default())
}

/// compressed-tensors 0.20 takes the amax of an input of two dimensions over no dimension, which torch takes for all: its expected output has one scale for all
/// rows. A row by itself has that scale, too.
fn rows_have_scales_of_their_own<B: Fp8Matmul>(
    [per_token, with_one_scale]: [&FrozenLinear<B>; 2],
    x: Tensor<B, 2>,
    expected: &[f32],
    place: &str,
) {
    assert_close(&values(with_one_scale.forward(x.clone())), expected, 1e-5, place);
    let [rows, _] = x.dims();
    let each =
        (0..rows).flat_map(|row| values(with_one_scale.forward(x.clone().narrow(0, row, 1))));
    let together = values(per_token.forward(x.clone()));
    assert_close(&together, &each.collect::<Vec<_>>(), 1e-6, place);
    // Rows differ in size, so that the two are not the same.
    assert!(bits(&together) != bits(&values(with_one_scale.forward(x))), "{place}");
}

/// Activations that no file quantizes are multiplied as they are: products of 24 bits, not of 8.
pub fn activations_stay_as_they_are_where_no_file_quantizes_them<B: Fp8Matmul>() {
    let device = Default::default();
    // 1 + 2^-20: neither FP8 nor bf16 has it.
    let x = tensor::<B, 2>(&[1.0 + 2f32.powi(-20), -1.0], [1, 2]);
    let scales = Scales::new([3, 2], [1, 2], vec![1.0, 2.0, 0.5]).expect("three outputs");
    let codes = vec![0x38; 6];
    let layer = QuantizedLinear::new([3, 2], codes, scales, None, Activations::None);
    let layer = FrozenLinear::<B>::from_published(layer.expect("a layer"), &device);
    let (y, report) = trace(|| values(layer.forward(x)));
    assert_eq!(y, [1.0, 2.0, 0.5].map(|scale| scale * 2f32.powi(-20)));
    let ran = &report.products[0].ran;
    assert_eq!(*ran, Implementation::HighPrecision(HighPrecision::WeightOnly));
    assert_eq!(ran.to_string(), "high precision: only the weight is in FP8");
}

/// Whatever the device's default type is, weights are exact.
pub fn scales_and_biases_are_f32<B: Fp8Matmul>() {
    let device = Default::default();
    for (name, _) in CHECKPOINTS {
        let checkpoint = Checkpoint::open(folder(name)).expect(name);
        let expected = Expected::of(name);
        for info in checkpoint.layers() {
            let layer =
                FrozenLinear::<B>::from_checkpoint(&checkpoint, &info.name, &device).expect(name);
            let (weight, _) = expected.part(&info.name, "weight");
            let of_file = values(layer.weight().transpose());
            assert_eq!(bits(&of_file), bits(&weight), "{name}, {}", info.name);
            assert!(layer.bias().is_none_or(|bias| bias.dtype() == DType::F32), "{name}");
            let (x, shape) = expected.part(&info.name, "input");
            let x = Tensor::<B, 2>::from_data(TensorData::new(x, shape), (&device, DType::F32));
            let output = layer.forward(x);
            assert_eq!(output.dtype(), DType::F32, "{name}");
        }
    }
}

/// Files may declare blocks of any size: nothing is allocated for what a matrix does not have.
pub fn blocks_larger_than_the_weight_are_as_large_as_it<B: Fp8Matmul>() {
    let device = Default::default();
    let [n, k] = [3, 70];
    let codes: Vec<u8> = (0..n * k).map(|at| (at % 0x60) as u8).collect();
    let x = super::Random(1).spread(2 * k);
    let run = |block: [usize; 2], size| {
        let scales = Scales::new([n, k], block, vec![0.5; n.div_ceil(block[0])]).expect("scales");
        let activations = Activations::Blocks { size, power_of_two: false };
        let layer = QuantizedLinear::new([n, k], codes.clone(), scales, None, activations);
        let layer = FrozenLinear::<B>::from_published(layer.expect("a layer"), &device);
        let (y, report) = trace(|| values(layer.forward(tensor(&x, [2, k]))));
        assert_eq!(report.products[0].ran, super::implementation::<B>(), "{block:?}, {size}");
        y
    };
    let expected = run([3, 70], 70);
    assert!(expected.iter().all(|y| y.is_finite() && *y != 0.0));
    for (block, size) in
        [([3, 128], 128), ([1 << 40, 1 << 40], 1 << 40), ([2, usize::MAX], 1 << 62)]
    {
        assert_close(&run(block, size), &expected, 1e-6, &format!("{block:?}, {size}"));
    }
}

/// Blocks of 128 in layers as wide as one, or narrower: on the matrix unit where there is one, and right.
pub fn weights_of_one_block_are_native<B: Fp8Matmul>() {
    for [m, k, n] in [[3, 128, 128], [17, 128, 64], [3, 100, 128], [3, 64, 300], [1, 128, 1]] {
        let what = format!("[{m}, {k}] times [{k}, {n}]");
        let sign = |at: usize| if at.is_multiple_of(3) { 0x80 } else { 0 };
        let codes: Vec<u8> = (0..n * k).map(|at| (at * 29 % 0x7E) as u8 | sign(at)).collect();
        let blocks = n.div_ceil(128);
        let of_blocks: Vec<_> = (0..blocks).map(|block| 0.75 / (block + 1) as f32).collect();
        // Inputs that are rounded to themselves: numbers of codes, the largest one in each row.
        let number = |at: usize| match at % k {
            7 => 448.0,
            _ => reference::decode((at * 37 % 0x7E) as u8, Fp8Format::E4M3),
        };
        let x: Vec<f64> = (0..m * k).map(|at| number(at) / 16.0).collect();
        let weight: Vec<_> = (0..n * k)
            .map(|at| {
                let scale = f64::from(of_blocks[at / k / 128]);
                reference::decode(codes[at], Fp8Format::E4M3) * scale
            })
            .collect();
        let weight = reference::transpose(&weight, [n, k]);
        let (exact, magnitudes) = reference::matmul(&x, &weight, [m, k, n]);
        let scales = Scales::new([n, k], [128, 128], of_blocks).expect("scales");
        let activations = Activations::Blocks { size: 128, power_of_two: false };
        let layer = QuantizedLinear::new([n, k], codes, scales, None, activations).expect(&what);
        let layer = FrozenLinear::<B>::from_published(layer, &Default::default());
        let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        let (y, report) = trace(|| values(layer.forward(tensor::<B, 2>(&x, [m, k]))));
        assert_eq!(report.products[0].ran, super::implementation::<B>(), "{what}");
        for ((y, exact), magnitude) in y.iter().zip(&exact).zip(&magnitudes) {
            assert!((f64::from(*y) - exact).abs() <= 1e-6 * magnitude, "{what}: {y} {exact}");
        }
    }
}

/// A layer keeps the type of its input, moves, and goes through records and `valid` as it is.
pub fn layers_are_modules<B: Fp8Matmul>()
where
    burn::backend::Autodiff<B>: Fp8Matmul,
{
    type Tracked<B> = burn::backend::Autodiff<B>;
    let device = Default::default();
    for name in ["ct_channel_dynamic", "ct_mxfp8", "fp8_tensor_static"] {
        let checkpoint = Checkpoint::open(folder(name)).expect(name);
        let info = &checkpoint.layers()[0];
        let layer = FrozenLinear::<Tracked<B>>::from_checkpoint(&checkpoint, &info.name, &device);
        let layer = layer.expect(name);
        let (x, shape) = Expected::of(name).part(&info.name, "input");
        let expected = values(layer.forward(tensor(&x, shape)));
        let moved = layer.clone().to_device(&device).fork(&device);
        let record = moved.clone().into_record();
        let again = moved.load_record(record);
        assert_eq!(bits(&values(again.forward(tensor(&x, shape)))), bits(&expected));
        let inner = layer.valid();
        assert_eq!(bits(&values(inner.forward(tensor(&x, shape)))), bits(&expected));
        let back = FrozenLinear::<Tracked<B>>::from_inner(inner);
        assert_eq!(bits(&values(back.forward(tensor(&x, shape)))), bits(&expected));
        let [k, n] = layer.dims();
        assert_eq!(Module::num_params(&layer), k * n + layer.bias().map_or(0, |_| n));
        assert!(layer.to_string().contains("E4M3"), "{layer}");
        let half = Tensor::<Tracked<B>, 2>::from_data(TensorData::new(x, shape), &device);
        if B::supports_dtype(&Default::default(), DType::BF16) {
            let half = layer.forward(half.cast(FloatDType::BF16));
            assert_eq!(half.dtype(), DType::BF16);
            assert_close(&values(half), &expected, 0.05, name);
        }
    }
}
