//! Burn's own quantized tensors with values in FP8, under the decorator: codes, scales, views, data, products, gradients, records, and what is refused.

use burn::module::Quantizer;
use burn::record::{
    BinFileRecorder, BinGzFileRecorder, CompactRecorder, FileRecorder, JsonGzFileRecorder,
    NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder,
};
use burn::tensor::ops::{QTensorOps, QuantizedTensor};
use burn::tensor::quantization::{
    BlockSize, Calibration, QTensorPrimitive, QuantLevel, QuantParam, QuantScheme, QuantStore,
    QuantValue,
};
use burn::tensor::{Shape, TensorPrimitive, Transaction};

use super::models::initialized;
use super::*;

pub fn schemes() -> [QuantScheme; 6] {
    let [rows, squares] = [[1, 32], [16, 16]].map(|size| QuantLevel::Block(BlockSize::new(size)));
    [
        of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::F32),
        of(QuantValue::E5M2, QuantLevel::Tensor, QuantParam::BF16),
        of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::UE8M0),
        of(QuantValue::E4M3, rows, QuantParam::UE8M0),
        of(QuantValue::E5M2, rows, QuantParam::F16),
        of(QuantValue::E4M3, squares, QuantParam::F32),
    ]
}

pub fn of(value: QuantValue, level: QuantLevel, param: QuantParam) -> QuantScheme {
    QuantScheme::default().with_value(value).with_level(level).with_param(param)
}

/// Integers, which are the backend's.
fn integers<B: Backend>() -> QuantScheme {
    <QuantizedTensor<B> as QTensorPrimitive>::default_scheme().with_value(QuantValue::Q8S)
}

/// The largest finite magnitude of each block, and the place of each element's.
fn blocks(shape: [usize; 2], scheme: &QuantScheme) -> Vec<usize> {
    let [rows, columns] = match scheme.level {
        QuantLevel::Tensor => shape,
        QuantLevel::Block(size) => size.as_dim::<2>().map(usize::from),
    };
    let across = shape[1] / columns;
    (0..shape[0] * shape[1])
        .map(|at| at / shape[1] / rows * across + at % shape[1] / columns)
        .collect()
}

fn format(scheme: &QuantScheme) -> Fp8Format {
    match scheme.value {
        QuantValue::E5M2 => E5M2,
        _ => E4M3,
    }
}

/// The codes and the scales of a quantized tensor, by its data.
pub fn parts<B: Backend, const D: usize>(q: Tensor<B, D>) -> (Vec<u8>, Vec<f32>) {
    let (elements, data) = (q.shape().num_elements(), q.into_data());
    let (codes, scales) = data.bytes.split_at(elements);
    let scales = scales.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four")));
    (codes.to_vec(), scales.collect())
}

pub fn codes_and_scales_are_those_of_the_definition<B: Fp8Matmul>() {
    const SHAPE: [usize; 2] = [32, 64];
    let mut x = Random(5).spread(32 * 64);
    // One row of zeros, one value that is none.
    x[..64].fill(0.0);
    x[100] = f32::NAN;
    for scheme in schemes() {
        let (format, places) = (format(&scheme), blocks(SHAPE, &scheme));
        let mut amaxes = vec![0f32; places.iter().max().expect("some") + 1];
        for (x, place) in x.iter().zip(&places) {
            amaxes[*place] =
                if x.is_finite() { amaxes[*place].max(x.abs()) } else { amaxes[*place] };
        }
        let scale = |amax: &f32| {
            let scale = amax / fp8::largest(format);
            match scheme.param {
                QuantParam::UE8M0 if *amax == 0.0 && scheme.level != QuantLevel::Tensor => {
                    2f32.powi(-127)
                }
                _ if *amax == 0.0 => 1.0,
                QuantParam::UE8M0 => 2f32.powf(scale.log2().ceil()),
                QuantParam::BF16 => burn::tensor::bf16::from_f32(scale).to_f32(),
                QuantParam::F16 => burn::tensor::f16::from_f32(scale).to_f32(),
                _ => scale,
            }
        };
        let expected: Vec<f32> = amaxes.iter().map(scale).collect();
        let q = tensor::<Fp8Backend<B>, 2>(&x, SHAPE).quantize_dynamic(&scheme);
        let (codes, scales) = parts(q.clone());
        assert_eq!(scales, expected, "{scheme:?}");
        let numbers = fp8::numbers(&codes, format, 1.0);
        for ((x, place), number) in x.iter().zip(&places).zip(numbers) {
            let rounded = fp8::round(f64::from(x / expected[*place]), format);
            let same = number
                == rounded.clamp(-f64::from(fp8::largest(format)), f64::from(fp8::largest(format)));
            assert!(same || x.is_nan() && number.is_nan(), "{scheme:?}: {x} became {number}");
        }
        // The same tensor from its data, and beside floats in one reading.
        let device = Default::default();
        let again = Tensor::<Fp8Backend<B>, 2>::from_data(q.clone().into_data(), &device);
        assert_eq!(parts(again), (codes.clone(), scales), "{scheme:?}");
        let floats = tensor::<Fp8Backend<B>, 1>(&[1.0, 2.0, 3.0, 4.0], [4]);
        let plain = integers::<B>();
        let integers = floats.clone().quantize_dynamic(&plain);
        let read = Transaction::default()
            .register(integers.clone())
            .register(q.clone())
            .register(floats.clone())
            .execute();
        assert_eq!(read, [integers.into_data(), q.into_data(), floats.into_data()]);
    }
}

pub fn mxfp8_is_that_of_torchao<B: Fp8Matmul>() {
    let scheme = schemes()[3];
    let golden = golden("mx");
    let mut compared = 0;
    for case in golden.cases("products") {
        if case["mode"].as_str() != Some("rceil") {
            continue;
        }
        let name = case["name"].as_str().expect("a name");
        let [m, k] = ["m", "k"].map(|size| case[size].as_u64().expect("a size") as usize);
        let format = golden::format(&case["a"]);
        if !k.is_multiple_of(32) {
            continue;
        }
        let value = if format == E4M3 { QuantValue::E4M3 } else { QuantValue::E5M2 };
        let x = tensor::<Fp8Backend<B>, 2>(&golden.f32s(&format!("{name}/a")), [m, k]);
        let dynamic = parts(x.clone().quantize_dynamic(&scheme.with_value(value)));
        let codes = golden.u8s(&format!("{name}/a_codes"));
        let scales = golden.u8s(&format!("{name}/a_scales"));
        let scales: Vec<f32> =
            scales.iter().map(|byte| 2f64.powi(i32::from(*byte) - 127) as f32).collect();
        assert_eq!(dynamic, (codes.clone(), scales.clone()), "{name}");
        // Through Burn's quantizer, which computes the scales.
        let mut quantizer =
            Quantizer { calibration: Calibration::MinMax, scheme: scheme.with_value(value) };
        let layer = linear::<Fp8Backend<B>>(x, None).quantize_weights(&mut quantizer);
        assert_eq!(parts(layer.weight.val()), (codes, scales), "{name}");
        compared += 1;
    }
    assert_eq!(compared, 4);
}

pub fn blocks_are_those_of_the_golden_data<B: Fp8Matmul>() {
    let golden = golden("blockwise");
    let mut compared = 0;
    for case in golden.case_names("cases") {
        let name = format!("{case}/x");
        if !golden.has(&name) {
            continue;
        }
        let shape = golden.shape(&name);
        let shape = [shape[0], shape[1]];
        for (tile, size) in [("1x128", [1, 128]), ("128x128", [128, 128])] {
            let at = format!("{case}.{tile}.divide");
            if !golden.has(&format!("{at}/codes"))
                || !shape[0].is_multiple_of(size[0])
                || !shape[1].is_multiple_of(size[1])
            {
                continue;
            }
            let level = QuantLevel::Block(BlockSize::new(size.map(|size| size as u8)));
            let scheme = of(QuantValue::E4M3, level, QuantParam::F32);
            let q =
                tensor::<Fp8Backend<B>, 2>(&golden.f32s(&name), shape).quantize_dynamic(&scheme);
            let (codes, scales) = parts(q);
            assert_eq!(scales, golden.f32s(&format!("{at}/scales")), "{at}");
            assert_eq!(
                fp8::numbers(&codes, E4M3, 1.0).iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                fp8::numbers(&golden.u8s(&format!("{at}/codes")), E4M3, 1.0)
                    .iter()
                    .map(|x| x.to_bits())
                    .collect::<Vec<_>>(),
                "{at}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 4, "{compared}");
}

pub fn every_code_stands_for_its_number<B: Fp8Matmul>() {
    let device = Default::default();
    for (value, format) in [(QuantValue::E4M3, E4M3), (QuantValue::E5M2, E5M2)] {
        let scheme = of(value, QuantLevel::Tensor, QuantParam::F32);
        let codes: Vec<i8> = (0..=255u8).map(u8::cast_signed).collect();
        let data = TensorData::quantized(codes, [16, 16], scheme, &[0.5]);
        let q = Tensor::<Fp8Backend<B>, 2>::from_data(data.clone(), &device);
        let expected = (0..=255).map(|code| 0.5 * fp8::decode(code, format) as f32);
        assert_same(&values(q.clone().dequantize()), &expected.collect::<Vec<_>>(), "decoded");
        // Burn's own, on Flex, takes the codes for integers: that is what this type mends.
        assert_eq!(q.dtype(), DType::QFloat(scheme.with_store(QuantStore::Native)));
    }
}

/// What `Tensor::quantize` is given, and a quantizer computes.
pub fn given_scales_are_kept<B: Fp8Matmul>() {
    type Given<B> = burn::tensor::quantization::QuantizationParameters<Fp8Backend<B>>;
    let scheme = of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::F32);
    let x = tensor::<Fp8Backend<B>, 2>(&[1.0, 500.0, -900.0, 0.3], [2, 2]);
    let given: Given<B> = Given { scales: tensor(&[1.0], [1]) };
    let (codes, scales) = parts(x.quantize(&scheme, given));
    assert_eq!(scales, [1.0]);
    assert_eq!(fp8::numbers(&codes, E4M3, 1.0), [1.0, 448.0, -448.0, 0.3125]);
    // Zeros have the scale 0 in Burn.
    let zeros = Tensor::<Fp8Backend<B>, 2>::zeros([4, 32], &Default::default());
    let mut quantizer = Quantizer { calibration: Calibration::MinMax, scheme };
    let layer = linear::<Fp8Backend<B>>(zeros, None).quantize_weights(&mut quantizer);
    assert_eq!(parts(layer.weight.val()), (vec![0; 128], vec![1.0]));
}

pub fn views_move_codes_and_scales<B: Fp8Matmul>() {
    type T<B> = Tensor<Fp8Backend<B>, 3>;
    let device = Default::default();
    let x = tensor::<Fp8Backend<B>, 3>(&Random(8).spread(2 * 32 * 64), [2, 32, 64]);
    let indices = Tensor::<Fp8Backend<B>, 1, Int>::from_ints([1, 0, 1], &device);
    for scheme in schemes() {
        let q = x.clone().quantize_dynamic(&scheme);
        let numbers = q.clone().dequantize();
        let check = |what: &str, moved: T<B>, expected: T<B>| {
            assert_eq!(moved.dims(), expected.dims(), "{what} {scheme:?}");
            assert!(matches!(moved.dtype(), DType::QFloat(_)), "{what} stays quantized");
            let (moved, expected) = (values(moved.dequantize()), values(expected));
            assert_same(&moved, &expected, &format!("{what} {scheme:?}"));
        };
        check("transposed", q.clone().swap_dims(1, 2), numbers.clone().swap_dims(1, 2));
        check("permuted", q.clone().permute([0, 2, 1]), numbers.clone().permute([0, 2, 1]));
        check("flipped", q.clone().flip([0, 2]), numbers.clone().flip([0, 2]));
        check(
            "rows",
            q.clone().slice([0..2, 16..32, 0..64]),
            numbers.clone().slice([0..2, 16..32, 0..64]),
        );
        check(
            "one",
            q.clone().slice([1..2, 0..32, 32..64]),
            numbers.clone().slice([1..2, 0..32, 32..64]),
        );
        check(
            "selected",
            q.clone().select(0, indices.clone()),
            numbers.clone().select(0, indices.clone()),
        );
        check("reshaped", q.clone().reshape([1, 64, 64]), numbers.clone().reshape([1, 64, 64]));
        // Burn's own expand dequantizes first; the operation underneath does not.
        let one = q.clone().slice([0..1, 0..32, 0..64]);
        let TensorPrimitive::QFloat(codes) = one.into_primitive() else { panic!("a slice stays") };
        let codes = <Fp8Backend<B> as QTensorOps<_>>::q_expand(codes, Shape::new([3, 32, 64]));
        let expanded = numbers.clone().slice([0..1, 0..32, 0..64]).expand([3, 32, 64]);
        check("expanded", Tensor::from_primitive(TensorPrimitive::QFloat(codes)), expanded);
        if scheme.level == QuantLevel::Tensor {
            check("moved", q.clone().swap_dims(0, 1), numbers.clone().swap_dims(0, 1));
            check(
                "ragged",
                q.clone().slice([0..1, 3..8, 1..62]),
                numbers.clone().slice([0..1, 3..8, 1..62]),
            );
        }
        // One dimension, as a bias has.
        let bias =
            x.clone().reshape([4096]).quantize_dynamic(&scheme.with_level(match scheme.level {
                QuantLevel::Tensor => QuantLevel::Tensor,
                _ => QuantLevel::Block(BlockSize::new([32])),
            }));
        let of_bias = bias.clone().dequantize();
        assert_same(
            &values(bias.clone().slice(64..128).dequantize()),
            &values(of_bias.clone().slice(64..128)),
            "a bias",
        );
        assert_same(
            &values(bias.reshape([64, 64]).dequantize()),
            &values(of_bias),
            "a bias as a matrix",
        );
    }
    // Blocks that are torn apart are quantized again: near the numbers, and still of the scheme.
    let q = x.clone().quantize_dynamic(&schemes()[3]);
    let torn = q.clone().slice([0..2, 0..32, 16..48]);
    assert_eq!(torn.dims(), [2, 32, 32]);
    let [torn, numbers] =
        [values(torn.dequantize()), values(q.dequantize().slice([0..2, 0..32, 16..48]))];
    let largest = fp8::amax(&numbers);
    for (x, y) in torn.iter().zip(&numbers) {
        assert!((x - y).abs() <= x.abs() / 8.0 + largest / 1e3, "{x} for {y}");
    }
    let q = x.quantize_dynamic(&schemes()[0]);
    let moved = q.clone().to_device(&device);
    assert_same(&values(moved.dequantize()), &values(q.dequantize()), "on a device");
    // A view that no block fits is none.
    let blocks = Tensor::<Fp8Backend<B>, 3>::ones([2, 32, 64], &device);
    let [rows, squares] = [3, 5].map(|scheme| blocks.clone().quantize_dynamic(&schemes()[scheme]));
    panics(|| rows.slice([0..2, 0..32, 0..20]), ["1×32", "apart", "dequantize"]);
    panics(|| squares.swap_dims(0, 1), ["16×16", "apart", "dequantize"]);
}

/// Burn's defaults dequantize.
pub fn operations_between_are_those_of_the_numbers<B: Fp8Matmul>() {
    let x = tensor::<Fp8Backend<B>, 2>(&Random(9).spread(32 * 64), [32, 64]);
    for scheme in schemes() {
        let q = x.clone().quantize_dynamic(&scheme);
        let numbers = q.clone().dequantize();
        let plain = integers::<B>();
        let other = x.clone().quantize_dynamic(&plain);
        let same = |a: Tensor<Fp8Backend<B>, 2>, b: Tensor<Fp8Backend<B>, 2>| {
            assert_same(&values(a.dequantize()), &values(b), &format!("{scheme:?}"));
        };
        same(q.clone() + q.clone(), numbers.clone() + numbers.clone());
        same(q.clone() * other.clone(), numbers.clone() * other.clone().dequantize());
        same(q.clone().mul_scalar(3.0), numbers.clone().mul_scalar(3.0));
        same(q.clone().exp(), numbers.clone().exp());
        same(q.clone().sum_dim(1), numbers.clone().sum_dim(1));
        assert_eq!(q.clone().argmax(1).into_data(), numbers.clone().argmax(1).into_data());
        // What is quantized again is near.
        let near = |a: Tensor<Fp8Backend<B>, 2>, b: Tensor<Fp8Backend<B>, 2>| {
            assert!(matches!(a.dtype(), DType::QFloat(_)));
            assert_eq!(a.dims(), b.dims());
            let (a, b) = (values(a.dequantize()), values(b));
            let largest = fp8::amax(&b);
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() / 8.0 + largest / 1e3;
            assert!(a.iter().zip(&b).all(is_near), "{scheme:?}");
        };
        near(q.clone().abs(), numbers.clone().abs());
        near(Tensor::cat(vec![q.clone(), q], 0), Tensor::cat(vec![numbers.clone(), numbers], 0));
    }
}

pub fn products_are_those_of_the_numbers<B: Fp8Matmul>() {
    for scheme in schemes() {
        for m in [1, 3, 64] {
            let [k, n] = [64, 96];
            let (x, w) = (Random(3).spread(m * k), Random(4).spread(k * n));
            let xs = tensor::<Fp8Backend<B>, 2>(&x, [m, k]);
            let q = tensor::<Fp8Backend<B>, 2>(&w, [k, n]).quantize_dynamic(&scheme);
            let weight = wide(&values(q.clone().dequantize()));
            let what = format!("{m} rows, {scheme:?}");
            let exact = Exact::product(&wide(&x), &weight, [m, k, n]);

            // FP8 off: numbers times numbers.
            let y = high_precision(|| values(xs.clone().matmul(q.clone())));
            exact.assert(&y, Sums::F32, &what);
            // Few rows are not quantized by the default filter: the input stays as it is.
            let (y, report) = trace(|| values(xs.clone().matmul(q.clone())));
            match m < 16 {
                true => {
                    exact.assert(&y, Sums::F32, &what);
                    assert_eq!(reasons(&report), [HighPrecision::WeightOnly], "{what}");
                }
                false => {
                    let rounded = fp8::quantize_dequantize(&x, E4M3);
                    let exact = Exact::product(&rounded, &weight, [m, k, n]);
                    exact.assert(&y, Sums::F32, &what);
                    assert_eq!(report.fp8().count(), 1, "{what}: {report}");
                }
            }
            // The left operand, a batch, and a weight that a batch of one holds.
            let left = |w: Tensor<Fp8Backend<B>, 2>| {
                high_precision(|| values(w.transpose().matmul(xs.clone().transpose()).transpose()))
            };
            exact.assert(&left(q.clone()), Sums::F32, &what);
            let batch = high_precision(|| {
                values(xs.clone().reshape([1, m, k]).matmul(q.clone().reshape([1, k, n])))
            });
            exact.assert(&batch, Sums::F32, &what);

            // Codes times codes.
            let of_x = xs.clone().quantize_dynamic(&schemes()[0]);
            let rounded = wide(&values(of_x.clone().dequantize()));
            let (y, report) = trace(|| values(of_x.matmul(q)));
            Exact::product(&rounded, &weight, [m, k, n]).assert(&y, Sums::F32, &what);
            assert_eq!(report.fp8().count(), 1, "{what}: {report}");
            assert_eq!(report.products[0].kind, ProductKind::Matmul);

            // Integers times codes, and batches of codes: nothing is rounded a second time.
            let whole = xs.clone().quantize_dynamic(&integers::<B>());
            let numbers = wide(&values(whole.clone().dequantize()));
            let q = tensor::<Fp8Backend<B>, 2>(&w, [k, n]).quantize_dynamic(&scheme);
            let exact = Exact::product(&numbers, &weight, [m, k, n]);
            exact.assert(&values(whole.clone().matmul(q.clone())), Sums::F32, &what);
            // Four integers make a word on some backends.
            if m.is_multiple_of(4) {
                let turned = tensor::<Fp8Backend<B>, 2>(&transpose(&x, [m, k]), [k, m]);
                let turned = turned.quantize_dynamic(&integers::<B>());
                let numbers = transpose(&wide(&values(turned.clone().dequantize())), [k, m]);
                let left = q.clone().transpose().matmul(turned).transpose();
                let exact = Exact::product(&numbers, &weight, [m, k, n]);
                exact.assert(&values(left), Sums::F32, &what);
            }
            let small = xs.quantize_dynamic(&schemes()[1]);
            let numbers = wide(&values(small.clone().dequantize()));
            let y = values(small.reshape([1, m, k]).matmul(q.reshape([1, k, n])));
            Exact::product(&numbers, &weight, [m, k, n]).assert(&y, Sums::F32, &what);
        }
    }
    // What is empty gives zeros or nothing, and what does not fit is refused, whatever the scheme.
    let device = Default::default();
    let zeros = |shape: [usize; 2]| Tensor::<Fp8Backend<B>, 2>::zeros(shape, &device);
    for scheme in [schemes()[0], schemes()[3]] {
        let empty = zeros([0, 64]).quantize_dynamic(&scheme);
        assert_eq!(values(zeros([4, 0]).matmul(empty.clone())), [0.0; 256]);
        let again = Tensor::<Fp8Backend<B>, 2>::from_data(empty.into_data(), &device);
        assert_eq!(again.dims(), [0, 64]);
        let batch =
            Tensor::<Fp8Backend<B>, 3>::ones([3, 32, 32], &device).quantize_dynamic(&scheme);
        let two = Tensor::<Fp8Backend<B>, 3>::ones([2, 32, 32], &device);
        panics(|| two.clone().matmul(batch.clone()), ["[2, 32, 32]", "[3, 32, 32]"]);
        panics(|| batch.matmul(two), ["[3, 32, 32]", "[2, 32, 32]"]);
    }
}

pub fn records_hold_one_byte_an_element<B: Fp8Matmul>() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = Default::default();
    let scheme = of(QuantValue::E4M3, QuantLevel::Tensor, QuantParam::F32);
    let mut quantizer = Quantizer { calibration: Calibration::MinMax, scheme };
    let new = |seed| {
        initialized(linear::<Fp8Backend<B>>(random(seed, [64, 48]), Some(random(seed + 1, [48]))))
    };
    let model = new(1).quantize_weights(&mut quantizer);
    let expected = parts(model.weight.val());
    fn round<B: Fp8Matmul, R: FileRecorder<Fp8Backend<B>>>(
        recorder: R,
        model: &Linear<Fp8Backend<B>>,
        into: Linear<Fp8Backend<B>>,
        path: std::path::PathBuf,
        device: &B::Device,
    ) -> Linear<Fp8Backend<B>> {
        model.clone().save_file(path.clone(), &recorder).expect("saved");
        into.load_file(path, &recorder, device).expect("loaded")
    }
    macro_rules! through {
        ($($recorder:ident)+) => {$({
            let path = folder.path().join(stringify!($recorder));
            let loaded = round(<$recorder<FullPrecisionSettings>>::default(), &model, new(5), path, &device);
            assert_eq!(parts(loaded.weight.val()), expected, stringify!($recorder));
        })+};
    }
    through!(BinFileRecorder BinGzFileRecorder NamedMpkFileRecorder NamedMpkGzFileRecorder JsonGzFileRecorder PrettyJsonFileRecorder);
    // Settings of half precision, Burn's default for files, leave codes and scales as they are.
    let path = folder.path().join("compact");
    let loaded = round(CompactRecorder::new(), &model, new(5), path, &device);
    assert_eq!(parts(loaded.weight.val()), expected);
    let bytes = |model: &Linear<Fp8Backend<B>>| {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        recorder.record(model.clone().into_record(), ()).expect("recorded").len()
    };
    let (small, large) = (bytes(&model), bytes(&new(1)));
    assert!(small < large * 3 / 10, "{small} of {large} bytes");
}

/// One dimension, leading ones, and blocks that are written with them.
pub fn other_ranks_hold_the_same<B: Fp8Matmul>() {
    let device = Default::default();
    let x = Random(5).spread(64 * 96);
    let matrix = || tensor::<Fp8Backend<B>, 2>(&x, [64, 96]);
    for block in [&[1u8, 32][..], &[1, 1, 32], &[32]] {
        let level = QuantLevel::Block(BlockSize::new(block));
        let scheme = of(QuantValue::E4M3, level, QuantParam::F32);
        let q = matrix().quantize_dynamic(&scheme);
        let expected = values(q.clone().dequantize());
        let check = |numbers: Vec<f32>| assert_same(&numbers, &expected, &format!("{block:?}"));
        let row = q.clone().reshape([64 * 96]);
        let (codes, scales) = parts(row.clone());
        assert_eq!((codes.len(), scales.len()), (64 * 96, 2 * 96));
        let read = Tensor::<Fp8Backend<B>, 1>::from_data(row.into_data(), &device);
        check(values(read.clone().dequantize()));
        check(values(read.reshape([64, 96]).dequantize()));
        let one = matrix().reshape([64 * 96]).quantize_dynamic(&scheme);
        assert_eq!(parts(one.clone()), (codes, scales));
        // A matrix of several, and back.
        let three = matrix().reshape([2, 32, 96]).quantize_dynamic(&scheme);
        check(values(three.clone().reshape([64, 96]).dequantize()));
        let one_of_one = matrix().reshape([1, 64, 96]).quantize_dynamic(&scheme);
        check(values(one_of_one.clone().reshape([64, 96]).dequantize()));
        let held = Fp8Tensor::from_quantized(one_of_one.clone()).expect("E4M3");
        check(values(held.dequantize()));
        check(values(held.into_quantized().expect("blocks of 32").dequantize()));
        let turned = one_of_one.swap_dims(1, 2);
        assert_eq!(turned.dims(), [1, 96, 64]);
        let expected = transpose(&expected, [64, 96]);
        assert_same(&values(turned.dequantize()), &expected, "transposed");
    }
    // A product lays out the codes that a tensor of one dimension shares.
    let column = tensor::<Fp8Backend<B>, 1>(&x[..64], [64]).quantize_dynamic(&schemes()[0]);
    let numbers = values(column.clone().dequantize());
    let y = matrix().transpose().slice([0..3, 0..64]).matmul(column.clone().reshape([64, 1]));
    assert_eq!(y.dims(), [3, 1]);
    let held = Fp8Tensor::from_quantized(column).expect("one scale");
    assert_same(&values(held.dequantize()), &numbers, "a column");
    // Both of one matrix each, in three dimensions as in two.
    let [a, b] = [[64, 96], [96, 64]].map(|shape| tensor::<Fp8Backend<B>, 2>(&x, shape));
    let [a, b] = [a, b].map(|x| x.quantize_dynamic(&schemes()[0]));
    let expected = values(a.clone().matmul(b.clone()));
    let [a, b] = [a.reshape([1, 64, 96]), b.reshape([1, 96, 64])];
    let y = a.matmul(b);
    assert_eq!(y.dims(), [1, 64, 64]);
    assert_same(&values(y), &expected, "one matrix by one");
}

pub fn bad_input_is_refused<B: Fp8Matmul>() {
    let device = Default::default();
    let of_shape = |shape: [usize; 2]| Tensor::<Fp8Backend<B>, 2>::ones(shape, &device);
    panics(
        || of_shape([4, 40]).quantize_dynamic(&schemes()[3]),
        ["1×32", "[4, 40]", "one scale for the tensor"],
    );
    let cubes = schemes()[0].with_level(QuantLevel::Block(BlockSize::new([2, 1, 32])));
    panics(|| of_shape([4, 64]).quantize_dynamic(&cubes), ["last two dimensions"]);
    panics(
        || of_shape([4, 64]).quantize_dynamic(&schemes()[0].with_param(QuantParam::UE4M3)),
        ["UE4M3", "UE8M0"],
    );
    let mut quantizer = Quantizer { calibration: Calibration::MinMax, scheme: schemes()[5] };
    panics(
        || linear::<Fp8Backend<B>>(of_shape([16, 16]), None).quantize_weights(&mut quantizer),
        ["several rows", "quantize_dynamic"],
    );
    let infinite = Tensor::<Fp8Backend<B>, 2>::full([4, 32], f32::INFINITY, &device);
    let mut quantizer = Quantizer { calibration: Calibration::MinMax, scheme: schemes()[0] };
    panics(
        || linear::<Fp8Backend<B>>(infinite, None).quantize_weights(&mut quantizer),
        ["finite", "quantize_dynamic"],
    );
    for scale in [f32::NAN, 0.0, -1.0, f32::INFINITY] {
        let data = TensorData::quantized(vec![0i8, 0, 1, 0], [2, 2], schemes()[0], &[scale]);
        panics(
            || Tensor::<Fp8Backend<B>, 2>::from_data(data, &device),
            ["a scale of quantized data", "[2, 2]"],
        );
    }
    let rows = schemes()[3];
    let data = TensorData::quantized(vec![0i8; 64], [2, 32], rows, &[0.0, 1.0]);
    let zeros = Tensor::<Fp8Backend<B>, 2>::from_data(data, &device);
    assert_eq!(values(zeros.dequantize()), [0.0; 64]);
    let data =
        TensorData::quantized([vec![0i8; 32], vec![1; 32]].concat(), [2, 32], rows, &[1.0, 0.0]);
    panics(|| Tensor::<Fp8Backend<B>, 2>::from_data(data, &device), ["a scale of", "is 0"]);
    type Given<B> = burn::tensor::quantization::QuantizationParameters<Fp8Backend<B>>;
    let given: Given<B> = Given { scales: tensor(&[1.0, 2.0], [2]) };
    panics(|| of_shape([4, 32]).quantize(&schemes()[0], given), ["2 scales for 1"]);
    let rows = Tensor::<Fp8Backend<B>, 1>::ones([64], &device).quantize_dynamic(&schemes()[3]);
    refused(Fp8Tensor::from_quantized(rows), ["one dimension", "reshape"]);
    let data = TensorData::from_bytes_vec(vec![0; 6], [2, 2], DType::QFloat(schemes()[0]));
    panics(|| Tensor::<Fp8Backend<B>, 2>::from_data(data, &device), ["4 codes", "8 bytes, not 6"]);
}
