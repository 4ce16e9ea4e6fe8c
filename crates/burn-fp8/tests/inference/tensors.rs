//! FP8 tensors, with one scale and with those of rows and blocks: made from floats and from bytes, read back, transposed, moved, refused.

use burn::tensor::ops::FloatTensor;
use burn_fp8::engine::Scalar;

use crate::common::*;

type Matrix = Fp8Tensor<Flex, 2>;

tests_on_cpu!([codes_and_scales_are_those_of_the_definition, codes_take_one_byte_an_element]);

#[test]
fn the_decorator_quantizes_as_its_backend() {
    codes_and_scales_are_those_of_the_definition::<Outer<Flex>>();
    codes_take_one_byte_an_element::<Outer<Flex>>();
}

#[cfg(feature = "float8")]
#[test]
fn numbers_of_the_crate_float8_are_codes() {
    use burn_fp8::burn_fp8_core::float8::{from_codes, into_codes};
    use float8::F8E5M2;

    let numbers: Vec<_> = (0..=255).map(F8E5M2::from_bits).collect();
    let codes = into_codes(numbers.clone());
    let q = Matrix::from_bytes(codes, [16, 16], E5M2, 1.0, &Default::default()).expect("good");
    // The crate takes some NaN for numbers.
    for (number, value) in numbers.iter().zip(values(q.dequantize())) {
        assert!(
            number.to_f32() == value || value.is_nan() || value.abs() > 57344.0,
            "{number:?}: {value}"
        );
    }
    let bits = |numbers: &[F8E5M2]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&from_codes(q.to_bytes())), bits(&numbers));
}

fn codes_and_scales_are_those_of_the_definition<B: Fp8Matmul>() {
    const SHAPE: [usize; 3] = [5, 6, 7];
    for format in fp8::FORMATS {
        let x = Random(7).spread(5 * 6 * 7);
        let scale = fp8::scale(&x, format);
        let floats = tensor::<B, 3>(&x, SHAPE);
        let q = Fp8Tensor::quantize(floats.clone(), format);
        assert_eq!((q.dims(), q.format(), q.read_scale()), (SHAPE, format, scale));
        assert_eq!((values(q.scale()), q.scale().dims()), (vec![scale], [1]));
        let decoded = |q: &Fp8Tensor<B, 3>| fp8::numbers(&q.to_bytes(), format, 1.0);
        let expected = |scale: f32| {
            x.iter().map(|x| fp8::round(f64::from(x / scale), format)).collect::<Vec<_>>()
        };
        assert_eq!(decoded(&q), expected(scale), "{format}");
        let numbers = expected(scale).into_iter().map(|x| x as f32 * scale).collect::<Vec<_>>();
        assert_eq!(values(q.dequantize()), numbers);
        assert_eq!(q.dequantize_to(FloatDType::F32).dtype(), DType::F32);

        // A given scale, on the host and on the device, with which some saturate.
        let given = scale / 3.0;
        let on_device = tensor::<B, 1>(&[given], [1]);
        let from_host = Fp8Tensor::quantize_with(floats.clone(), format, given).expect("good");
        let from_device = Fp8Tensor::quantize_with(floats, format, on_device).expect("good");
        assert_eq!(decoded(&from_host), expected(given), "{format}");
        let bytes = from_host.to_bytes();
        assert_eq!((from_device.to_bytes(), from_device.read_scale()), (bytes.clone(), given));

        let device = Default::default();
        let copy = Fp8Tensor::<B, 3>::from_bytes(bytes.clone(), SHAPE, format, given, &device);
        let copy = copy.expect("good").to_device(&device);
        assert_eq!(copy.to_bytes(), bytes);
        assert_eq!(values(copy.dequantize()), values(from_host.dequantize()));
    }
    // No elements, and nothing but zeros: scale 1.
    let zeros =
        |shape| Fp8Tensor::<B, 2>::quantize(Tensor::zeros(shape, &Default::default()), E4M3);
    let empty = zeros([0, 3]);
    assert_eq!((empty.dims(), empty.read_scale(), empty.to_bytes()), ([0, 3], 1.0, vec![]));
    assert_eq!(empty.dequantize().dims(), [0, 3]);
    assert_eq!((empty.transpose().dims(), empty.transpose().to_bytes()), ([3, 0], vec![]));
    assert_eq!((zeros([2, 3]).read_scale(), zeros([2, 3]).to_bytes()), (1.0, vec![0; 6]));
}

/// On devices that have u8.
fn codes_take_one_byte_an_element<B: Fp8Matmul>() {
    let x = random::<B, 2>(1, [5, 6]);
    for format in fp8::FORMATS {
        assert_eq!(Fp8Tensor::quantize(x.clone().transpose(), format).bytes_held(), 30);
    }
    let q = Fp8Tensor::quantize(x, E4M3);
    assert_eq!(q.bytes_held(), 30);
    let d = scaled_matmul(&q, &q.transpose(), &ScaledMatmulOptions::fp8(E4M3, 1.0));
    assert_eq!(d.expect("good").into_fp8().bytes_held(), 25);
}

#[test]
fn every_float_type_quantizes_and_a_view_does() {
    let x = tensor::<Flex, 2>(&[1.0, -2.0, 3.5, 0.25, 7.0, -6.0], [2, 3]);
    let quantize = |x| Matrix::quantize_with(x, E4M3, 0.25).expect("good");
    let expected = quantize(x.clone()).to_bytes();
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        assert_eq!(quantize(x.clone().cast(dtype)).to_bytes(), expected, "{dtype:?}");
    }
    let view = quantize(x.transpose());
    assert_eq!((view.dims(), view.transpose().to_bytes()), ([3, 2], expected));
}

#[test]
fn what_is_not_finite_stays_visible() {
    const INF: f32 = f32::INFINITY;
    for (format, infinite) in [(E4M3, f32::NAN), (E5M2, INF)] {
        let x = tensor::<Flex, 2>(&[1.0, f32::NAN, INF, -INF], [2, 2]);
        let q = Matrix::quantize_with(x, format, 1.0).expect("good");
        assert_same(&values(q.dequantize()), &[1.0, f32::NAN, infinite, -infinite], "special");
    }
}

fn scaled(scale: impl Into<Scalar<FloatTensor<Flex>>>) -> Result<Matrix, Fp8Error> {
    Matrix::from_bytes(vec![0; 6], [2, 3], E4M3, scale, &Default::default())
}

#[test]
fn scales_that_are_none_are_refused() {
    let refused = |result: Result<Matrix, Fp8Error>, expected: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { what: "FP8 tensor", .. }), "{error:?}");
        says(error, [expected]);
    };
    for scale in hard::NO_SCALES.into_iter().chain([-0.0]) {
        refused(scaled(scale), "the scale is");
        refused(Fp8Tensor::quantize_with(ones([2, 3]), E4M3, scale), "the scale is");
    }
    for shape in [0, 2] {
        refused(scaled(ones::<Flex, 1>([shape])), "it must be F32 [1]");
        let quantized = Fp8Tensor::quantize_with(ones([2, 3]), E4M3, ones::<Flex, 1>([shape]));
        refused(quantized, "it must be F32 [1]");
    }
    // Of another float type it is cast.
    let q = scaled(ones::<Flex, 1>([1]).cast(FloatDType::BF16));
    assert_eq!(q.expect("good").scale().dtype(), DType::F32);
    for (bytes, shape) in [(5, [2, 3]), (0, [usize::MAX, 0]), (0, [0, usize::MAX])] {
        let result = Matrix::from_bytes(vec![0; bytes], shape, E4M3, 1.0, &Default::default());
        refused(result, "do not fill the shape");
    }
}

/// Random numbers in MXFP8.
pub fn mx<B: Fp8Matmul>(shape: [usize; 2]) -> Fp8Tensor<B, 2> {
    Fp8Tensor::quantize_blocks(random(1, shape), E4M3, [1, 32], Recipe::mxfp8()).expect("blocks")
}

#[test]
fn a_tensor_is_a_constant_that_goes_to_autodiff_and_back() {
    let x = tensor::<Outer<Flex>, 2>(&[1.0, 2.0, 3.0, 4.0], [2, 2]).require_grad();
    let scale = tensor::<Outer<Flex>, 1>(&[0.5], [1]).require_grad();
    let q = Fp8Tensor::quantize_with(x, E4M3, scale).expect("good").transpose();
    assert!(!q.dequantize().is_require_grad() && !q.scale().is_require_grad());
    for q in [q, mx([5, 70]).transpose()] {
        let inner = q.clone().inner();
        let outer = Fp8Tensor::<Outer<Flex>, 2>::from_inner(inner.clone());
        assert_eq!((inner.to_bytes(), values(inner.scales())), (q.to_bytes(), values(q.scales())));
        assert_eq!((outer.is_transposed(), outer.block()), (true, q.block()));
        assert_eq!(values(inner.dequantize()), values(q.dequantize()));
        assert_eq!(values(outer.dequantize()), values(q.dequantize()));
    }
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
    let empty = mx::<Outer<Flex>>([0, 70]);
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
    let in_blocks = |grid: [usize; 2], block| {
        let device = Default::default();
        Matrix::from_blocks(vec![0; 12], [2, 6], E4M3, ones::<Flex, 2>(grid), block, &device)
    };
    refused(in_blocks([2, 3], [1, 4]), ["F32 [2, 3]; codes [2, 6] in blocks 1×4 have F32 [2, 2]"]);
    refused(in_blocks([2, 2], [0, 4]), ["0×4 have no elements"]);
    for (block, recipe, words) in [
        ([1, 32], Recipe::current(), "powers of two, one byte each: use Recipe::mxfp8()"),
        ([1, 0], Recipe::mxfp8(), "no elements"),
        ([1, 64], Recipe::delayed(), "without a history; use Recipe::current()"),
        ([1, 64], Recipe::current().with_margin(65), "65"),
    ] {
        refused(Matrix::quantize_blocks(ones([2, 64]), E4M3, block, recipe), [words]);
    }
    refused(Fp8Tensor::<Flex, 1>::quantize_rows(ones([4]), E4M3), ["[4] are no rows and columns"]);
}

#[test]
fn products_that_tensor_cores_do_not_have_are_refused() {
    let x = |block, recipe| {
        Matrix::quantize_blocks(random(2, [256, 256]), E4M3, block, recipe).expect("blocks")
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
    let output = scaled_matmul(&mx, &mx.transpose(), &ScaledMatmulOptions::fp8(E4M3, 1.0));
    refused(output.map(drop), ["no FP8 output: take float output"]);
}

/// On a matrix unit they run, elsewhere they are refused.
#[test]
fn native_products_run_or_are_refused_in_words() {
    let divided = Recipe::blockwise().with_power_of_two(false);
    let native = Fp8Config::default().with_execution(Execution::Native);
    for (block, recipe) in
        [([1, 128], divided), ([1, 32], Recipe::mxfp8()), ([1, 256], Recipe::current())]
    {
        let q = Matrix::quantize_blocks(random(3, [4, 256]), E4M3, block, recipe);
        let q = q.expect("rows and columns");
        let options = ScaledMatmulOptions::default();
        match native.scope(|| scaled_matmul(&q, &q.transpose(), &options)) {
            Ok(_) => assert!(has_unit::<Flex>()),
            Err(error) => {
                let is_why = matches!(error, Fp8Error::NativeUnavailable { .. });
                assert!(is_why && !has_unit::<Flex>(), "{error:?}");
            }
        }
    }
}
