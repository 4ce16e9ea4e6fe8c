//! FP8 tensors, with one scale and with those of rows and blocks: made from floats and from bytes, read back, transposed, moved, refused.

use burn::tensor::ops::FloatTensor;
use burn_fp8::engine::Scalar;

use crate::common::files::NO_SCALES;
use crate::common::*;

type Matrix = Fp8Tensor<Flex, 2>;

tests_on_cpu!([codes_and_scales_are_those_of_the_definition, codes_take_one_byte_an_element]);

#[test]
fn the_decorator_quantizes_as_its_backend() {
    codes_and_scales_are_those_of_the_definition::<Outer<Flex>>();
    codes_take_one_byte_an_element::<Outer<Flex>>();
}

fn decoded(bytes: &[u8], format: Fp8Format) -> Vec<f64> {
    reference::numbers(bytes, format, 1.0)
}

#[cfg(feature = "float8")]
#[test]
fn numbers_of_the_crate_float8_are_codes() {
    use burn_fp8::burn_fp8_core::float8::{from_codes, into_codes};
    use float8::F8E5M2;

    let numbers: Vec<_> = (0..=255).map(F8E5M2::from_bits).collect();
    let device = Default::default();
    let q = Matrix::from_bytes(into_codes(numbers.clone()), [16, 16], E5M2, 1.0, &device);
    let q = q.expect("good");
    // The crate takes some NaN for numbers.
    let finite = |x: f32| x.abs() <= 57344.0;
    for (number, value) in numbers.iter().zip(values(q.dequantize())) {
        assert!(number.to_f32() == value || !finite(value), "{number:?}: {value}");
    }
    let bits = |numbers: &[F8E5M2]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&from_codes(q.to_bytes())), bits(&numbers));
}

fn codes_and_scales_are_those_of_the_definition<B: Fp8Matmul>() {
    const SHAPE: [usize; 3] = [5, 6, 7];
    for format in [E4M3, E5M2] {
        let x = Random(7).spread(5 * 6 * 7);
        let scale = reference::scale(&x, format);
        let floats = tensor::<B, 3>(&x, SHAPE);
        let q = Fp8Tensor::quantize(floats.clone(), format);
        assert_eq!((q.dims(), q.format(), q.read_scale()), (SHAPE, format, scale));
        assert_eq!((values(q.scale()), q.scale().dims()), (vec![scale], [1]));
        let expected = |scale: f32| {
            x.iter().map(|x| reference::round(f64::from(x / scale), format)).collect::<Vec<_>>()
        };
        assert_eq!(decoded(&q.to_bytes(), format), expected(scale), "{format}");
        let numbers = expected(scale).into_iter().map(|x| x as f32 * scale).collect::<Vec<_>>();
        assert_eq!(values(q.dequantize()), numbers);
        assert_eq!(q.dequantize_to(FloatDType::F32).dtype(), DType::F32);

        // A given scale, on the host and on the device, with which some saturate.
        let given = scale / 3.0;
        let on_device = tensor::<B, 1>(&[given], [1]);
        let from_host = Fp8Tensor::quantize_with(floats.clone(), format, given).expect("good");
        let from_device = Fp8Tensor::quantize_with(floats, format, on_device).expect("good");
        let bytes = from_host.to_bytes();
        assert_eq!(decoded(&bytes, format), expected(given), "{format}");
        assert_eq!((from_device.to_bytes(), from_device.read_scale()), (bytes.clone(), given));

        let device = Default::default();
        let copy = Fp8Tensor::<B, 3>::from_bytes(bytes.clone(), SHAPE, format, given, &device);
        let copy = copy.expect("good").to_device(&device);
        assert_eq!(copy.to_bytes(), bytes);
        assert_eq!(values(copy.dequantize()), values(from_host.dequantize()));
    }
    // No elements, and nothing but zeros: scale 1.
    let empty = Fp8Tensor::<B, 2>::quantize(Tensor::zeros([0, 3], &Default::default()), E4M3);
    assert_eq!((empty.dims(), empty.read_scale(), empty.to_bytes()), ([0, 3], 1.0, vec![]));
    assert_eq!(empty.dequantize().dims(), [0, 3]);
    assert_eq!((empty.transpose().dims(), empty.transpose().to_bytes()), ([3, 0], vec![]));
    let zeros = Fp8Tensor::<B, 2>::quantize(Tensor::zeros([2, 3], &Default::default()), E4M3);
    assert_eq!((zeros.read_scale(), zeros.to_bytes()), (1.0, vec![0; 6]));
}

/// On devices that have u8.
fn codes_take_one_byte_an_element<B: Fp8Matmul>() {
    let x = tensor::<B, 2>(&Random(1).spread(30), [5, 6]);
    let q = Fp8Tensor::quantize(x.clone(), E4M3);
    assert_eq!(q.bytes_held(), 30);
    for format in [E4M3, E5M2] {
        assert_eq!(Fp8Tensor::quantize(x.clone().transpose(), format).bytes_held(), 30);
    }
    let options = ScaledMatmulOptions::fp8(E4M3, 1.0);
    let d = scaled_matmul(&q, &q.transpose(), &options).expect("good");
    assert_eq!(d.into_fp8().bytes_held(), 25);
}

#[test]
fn every_float_type_quantizes_and_a_view_does() {
    let x = tensor::<Flex, 2>(&[1.0, -2.0, 3.5, 0.25, 7.0, -6.0], [2, 3]);
    let expected = Matrix::quantize_with(x.clone(), E4M3, 0.25).expect("good").to_bytes();
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let q = Matrix::quantize_with(x.clone().cast(dtype), E4M3, 0.25).expect("good");
        assert_eq!(q.to_bytes(), expected, "{dtype:?}");
    }
    let view = Matrix::quantize_with(x.transpose(), E4M3, 0.25).expect("good");
    assert_eq!((view.dims(), view.transpose().to_bytes()), ([3, 2], expected));
}

#[test]
fn what_is_not_finite_stays_visible() {
    const INF: f32 = f32::INFINITY;
    for (format, infinite) in [(E4M3, f32::NAN), (E5M2, INF)] {
        let x = tensor::<Flex, 2>(&[1.0, f32::NAN, INF, -INF], [2, 2]);
        let q = Matrix::quantize_with(x, format, 1.0).expect("good");
        let expected = [1.0, f32::NAN, infinite, -infinite];
        assert_close(&values(q.dequantize()), &expected, 0.0, "special values");
    }
}

fn scaled(scale: impl Into<Scalar<FloatTensor<Flex>>>) -> Result<Matrix, Fp8Error> {
    Matrix::from_bytes(vec![0; 6], [2, 3], E4M3, scale, &Default::default())
}

fn in_blocks(grid: [usize; 2], block: [usize; 2]) -> Result<Matrix, Fp8Error> {
    Matrix::from_blocks(vec![0; 12], [2, 6], E4M3, ones(grid), block, &Default::default())
}

fn ones<const D: usize>(shape: [usize; D]) -> Tensor<Flex, D> {
    Tensor::ones(shape, &Default::default())
}

#[test]
fn scales_that_are_none_are_refused() {
    let refused = |result: Result<Matrix, Fp8Error>, expected: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { what: "FP8 tensor", .. }), "{error:?}");
        says(error, [expected]);
    };
    for scale in NO_SCALES.into_iter().chain([-0.0]) {
        refused(scaled(scale), "the scale is");
        refused(Fp8Tensor::quantize_with(ones([2, 3]), E4M3, scale), "the scale is");
    }
    for shape in [0, 2] {
        refused(scaled(ones([shape])), "it must be F32 [1]");
        let quantized = Fp8Tensor::quantize_with(ones([2, 3]), E4M3, ones([shape]));
        refused(quantized, "it must be F32 [1]");
    }
    // Of another float type it is cast.
    let q = scaled(ones([1]).cast(FloatDType::BF16));
    assert_eq!(q.expect("good").scale().dtype(), DType::F32);
    for (bytes, shape) in [(5, [2, 3]), (0, [usize::MAX, 0]), (0, [0, usize::MAX])] {
        let result = Matrix::from_bytes(vec![0; bytes], shape, E4M3, 1.0, &Default::default());
        refused(result, "do not fill the shape");
    }
}

#[test]
fn a_tensor_is_a_constant_that_goes_to_autodiff_and_back() {
    let x = tensor::<Outer<Flex>, 2>(&[1.0, 2.0, 3.0, 4.0], [2, 2]).require_grad();
    let scale = tensor::<Outer<Flex>, 1>(&[0.5], [1]).require_grad();
    let q = Fp8Tensor::quantize_with(x, E4M3, scale).expect("good").transpose();
    assert!(!q.dequantize().is_require_grad() && !q.scale().is_require_grad());
    let inner = q.clone().inner();
    assert_eq!((inner.to_bytes(), inner.read_scale()), (q.to_bytes(), 0.5));
    assert_eq!(values(inner.dequantize()), [1.0, 3.0, 2.0, 4.0]);
    let outer = Fp8Tensor::<Outer<Flex>, 2>::from_inner(inner);
    assert!(outer.is_transposed());
    assert_eq!(values(outer.dequantize()), [1.0, 3.0, 2.0, 4.0]);
}

/// Random numbers in MXFP8.
pub fn mx<B: Fp8Matmul>(shape: [usize; 2]) -> Fp8Tensor<B, 2> {
    let x = tensor(&Random(1).spread(shape.iter().product()), shape);
    Fp8Tensor::quantize_blocks(x, E4M3, [1, 32], Recipe::mxfp8()).expect("blocks")
}

#[test]
fn transposes_keep_the_scales_of_their_blocks() {
    let q = mx::<Flex>([5, 70]);
    assert_eq!((q.block(), q.scales().dims()), (Some([1, 32]), [5, 3]));
    let t = q.transpose();
    assert_eq!((t.block(), t.scales().dims(), t.dims()), (Some([32, 1]), [3, 5], [70, 5]));
    assert_eq!(values(t.dequantize()), values(q.dequantize().transpose()));
    assert_eq!(values(t.scales()), values(q.scales().transpose()));
    let (bytes, scales) = (t.to_bytes(), t.scales());
    let again = Matrix::from_blocks(bytes, [70, 5], E4M3, scales, [32, 1], &Default::default());
    assert_eq!(values(again.expect("its own parts").dequantize()), values(t.dequantize()));
    // On another backend.
    let lifted = Fp8Tensor::<Autodiff<Flex>, 2>::from_inner(t.clone());
    assert_eq!((lifted.block(), values(lifted.dequantize())), (t.block(), values(t.dequantize())));
    assert_eq!(values(lifted.inner().scales()), values(t.scales()));
    let empty = Tensor::<Outer<Flex>, 2>::zeros([0, 70], &Default::default());
    let empty = Fp8Tensor::quantize_blocks(empty, E4M3, [1, 32], Recipe::mxfp8()).expect("empty");
    assert_eq!((empty.scales().dims(), empty.dequantize().dims()), ([0, 3], [0, 70]));
}

#[test]
fn one_scale_is_not_made_up_where_there_are_several() {
    let q = mx::<Flex>([2, 64]);
    panics(|| q.read_scale(), ["a scale for each block 1×32: use scales()"]);
    panics(|| q.scale(), ["a scale for each block 1×32: use scales()"]);
    let one = Matrix::quantize(ones([2, 3]), E4M3);
    assert_eq!((one.block(), values(one.scales())), (None, vec![one.read_scale()]));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    refused(in_blocks([2, 3], [1, 4]), ["F32 [2, 3]; codes [2, 6] in blocks 1×4 have F32 [2, 2]"]);
    let none = in_blocks([2, 2], [0, 4]);
    refused(none, ["0×4 have no elements"]);
    for (block, recipe, words) in [
        ([1, 32], Recipe::current(), "powers of two, one byte each: use Recipe::mxfp8()"),
        ([1, 0], Recipe::mxfp8(), "no elements"),
        ([1, 64], Recipe::delayed(), "without a history; use Recipe::current()"),
        ([1, 64], Recipe::current().with_margin(65), "65"),
    ] {
        refused(Matrix::quantize_blocks(ones([2, 64]), E4M3, block, recipe), [words]);
    }
    refused(Fp8Tensor::quantize_rows(ones([4]), E4M3), ["[4] are no rows and columns"]);
}

#[test]
fn products_that_tensor_cores_do_not_have_are_refused() {
    let x = |block, recipe| {
        let x = tensor::<Flex, 2>(&Random(2).spread(256 * 256), [256, 256]);
        Fp8Tensor::quantize_blocks(x, E4M3, block, recipe).expect("blocks")
    };
    let wide = |block| x(block, Recipe::blockwise());
    let (mx, rows) = (x([1, 32], Recipe::mxfp8()), x([1, 256], Recipe::current()));
    let one = Matrix::quantize(ones([256, 256]), E4M3);
    for (a, b, words) in [
        (&mx, &one, "each block 1×32, the right one one scale: both have one"),
        (&mx, &mx, "1×32 of the left operand, 1×32 of the right one [K, N]"),
        (&wide([128, 128]), &wide([128, 128]), "not 128×128 on both sides"),
        (&rows, &mx.transpose(), "1×256 of the left operand, 32×1"),
        (&wide([1, 64]), &wide([1, 64]).transpose(), "possible are rows"),
    ] {
        refused(scaled_matmul(a, b, &ScaledMatmulOptions::default()).map(drop), [words]);
    }
    let options = ScaledMatmulOptions::fp8(E4M3, 1.0);
    let output = scaled_matmul(&mx, &mx.transpose(), &options).map(drop);
    refused(output, ["no FP8 output: take float output"]);
}

/// On a matrix unit they run, elsewhere they are refused.
#[test]
fn native_products_run_or_are_refused_in_words() {
    let x = tensor::<Flex, 2>(&Random(3).spread(4 * 256), [4, 256]);
    let divided = Recipe::blockwise().with_power_of_two(false);
    let native = Fp8Config::default().with_execution(Execution::Native);
    for q in [
        Fp8Tensor::quantize_blocks(x.clone(), E4M3, [1, 128], divided),
        Fp8Tensor::quantize_blocks(x.clone(), E4M3, [1, 32], Recipe::mxfp8()),
        Fp8Tensor::quantize_rows(x, E4M3),
    ] {
        let q = q.expect("rows and columns");
        let options = ScaledMatmulOptions::default();
        let product = native.scope(|| scaled_matmul(&q, &q.transpose(), &options));
        match implementation::<Flex>() {
            Implementation::MatrixUnit(_) => drop(product.expect("a unit takes it")),
            _ => {
                let error = product.expect_err("refused");
                assert!(matches!(error, Fp8Error::NativeUnavailable { .. }), "{error:?}");
            }
        }
    }
}
