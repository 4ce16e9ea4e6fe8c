//! Scaled products: what is refused and why, layouts, special values, and any product against f64.

use burn_fp8_test_support::operations::Function;
use proptest::prelude::*;

use crate::common::fused::{
    Output, activated, all_layouts_give_the_same_product, assert_amax, assert_output,
    special_values_stay_visible_or_saturate,
};
use crate::common::*;

tests_on_cpu!([all_layouts_give_the_same_product, special_values_stay_visible_or_saturate]);

#[test]
fn products_of_the_decorator_are_those_of_its_backend() {
    all_layouts_give_the_same_product::<Outer<Flex>>();
    special_values_stay_visible_or_saturate::<Outer<Flex>>();
}

type Options = ScaledMatmulOptions<Flex>;

type Matrix = Fp8Tensor<Flex, 2>;

fn of_ones(shape: [usize; 2], format: Fp8Format) -> Matrix {
    Fp8Tensor::quantize(ones(shape), format)
}

/// `[4, 6]` and `[6, 5]`.
fn operands() -> [Matrix; 2] {
    [of_ones([4, 6], E4M3), of_ones([6, 5], E4M3)]
}

#[track_caller]
fn assert_refused<const N: usize>(a: &Matrix, b: &Matrix, options: Options, words: [&str; N]) {
    let (error, report) = trace(|| scaled_matmul(a, b, &options).expect_err("refused"));
    assert!(matches!(error, Fp8Error::Invalid { what: "scaled_matmul", .. }), "{error:?}");
    assert!(report.products.is_empty(), "nothing ran");
    says(error, words);
}

#[test]
fn shapes_and_formats_that_do_not_multiply_are_refused() {
    let e4m3 = |shape| of_ones(shape, E4M3);
    let words = ["[4, 6] times [5, 6]", "weight.transpose()"];
    assert_refused(&e4m3([4, 6]), &e4m3([5, 6]), Options::default(), words);
    for (a, b) in [([0, 6], [6, 5]), ([4, 0], [0, 5]), ([4, 6], [6, 0])] {
        assert_refused(&e4m3(a), &e4m3(b), Options::default(), ["no elements"]);
    }
    let (a, b) = (of_ones([4, 6], E5M2), of_ones([6, 5], E5M2));
    assert_refused(&a, &b, Options::default(), ["E5M2 times E5M2", "to E4M3"]);
}

#[test]
fn outputs_that_the_hardware_does_not_have_are_refused() {
    let [a, b] = operands();
    let refused = |options, words| assert_refused(&a, &b, options, [words]);
    for dtype in [FloatDType::F64, FloatDType::Flex32] {
        refused(Options::float(dtype), "F32, BF16, F16 and FP8 are possible");
    }
    refused(Options::fp8(E5M2, 1.0), "no E5M2 output: take E4M3");
    refused(Options::default().with_amax(), "amax comes with FP8 output only");
    for scale in hard::NO_SCALES.into_iter().chain([2f32.powi(127)]) {
        refused(Options::fp8(E4M3, scale), "the scale of the output");
    }
    let two = tensor::<Flex, 1>(&[1.0, 2.0], [2]);
    refused(Options::fp8(E4M3, two), "F32 [2]; it must be F32 [1]");
    for scale in [f32::MIN_POSITIVE, 2f32.powi(126)] {
        scaled_matmul(&a, &b, &Options::fp8(E4M3, scale)).expect("the ends of the range");
    }
    for (a, b, out) in
        [(E4M3, E5M2, E4M3), (E4M3, E5M2, E5M2), (E5M2, E4M3, E4M3), (E5M2, E4M3, E5M2)]
    {
        let output =
            scaled_matmul(&of_ones([4, 6], a), &of_ones([6, 5], b), &Options::fp8(out, 1.0));
        assert_eq!(output.expect("the hardware has it").into_fp8().format(), out);
    }
}

#[test]
fn biases_that_the_hardware_does_not_take_are_refused() {
    use FloatDType::{BF16, F16, F32, F64};
    let [a, b] = operands();
    let bias = |len, dtype| ones::<Flex, 1>([len]).cast(dtype);
    let options = Options::default().with_bias(bias(4, BF16));
    assert_refused(&a, &b, options, ["the bias is [4]; it must be [5]"]);
    for (options, taken) in [
        (Options::float(F32), &[BF16][..]),
        (Options::float(BF16), &[BF16]),
        (Options::float(F16), &[F16]),
        (Options::fp8(E4M3, 1.0), &[BF16, F16]),
    ] {
        for dtype in [F32, F16, BF16, F64] {
            let options = options.clone().with_bias(bias(5, dtype));
            match taken.contains(&dtype) {
                true => drop(scaled_matmul(&a, &b, &options).expect("the hardware takes it")),
                false => {
                    let words = [&format!("the bias is {dtype:?}")[..], "use cast"];
                    assert_refused(&a, &b, options, words);
                }
            }
        }
    }
}

#[test]
fn matrices_that_the_hardware_does_not_add_are_refused() {
    use FloatDType::{BF16, F16, F32};
    let [a, b] = operands();
    let c = |shape, dtype| ones::<Flex, 2>(shape).cast(dtype);
    let refused = |options: Options, words: &[&str]| {
        for word in words {
            assert_refused(&a, &b, options.clone(), [word]);
        }
    };
    refused(Options::default().with_c(c([5, 4], F32), 1.0), &["C is [5, 4]", "[4, 5]"]);
    for beta in [f32::NAN, f32::INFINITY] {
        refused(Options::default().with_c(c([4, 5], F32), beta), &["beta is", "finite"]);
    }
    for (options, taken) in [
        (Options::float(F32), &[F32][..]),
        (Options::float(BF16), &[BF16]),
        (Options::float(F16), &[F16]),
        (Options::fp8(E4M3, 1.0), &[BF16, F16]),
    ] {
        for dtype in [F32, F16, BF16] {
            let options = options.clone().with_c(c([4, 5], dtype), 0.5);
            match taken.contains(&dtype) {
                true => drop(scaled_matmul(&a, &b, &options).expect("the hardware takes it")),
                false => refused(options, &["C is", "use cast"]),
            }
        }
    }
    let bias = ones::<Flex, 1>([5]).cast(F16);
    let options = Options::fp8(E4M3, 1.0).with_c(c([4, 5], BF16), 1.0).with_bias(bias);
    refused(options, &["the bias is F16", "[BF16]"]);
    // As in cuBLAS: what is multiplied by 0 is not read.
    let options = Options::default().with_c(c([4, 5], F32) * f32::NAN, 0.0);
    let d = scaled_matmul(&a, &b, &options).expect("a product").into_float();
    assert_close(&values(d), &[6.0; 20], 1e-6, "beta is 0");
}

#[test]
fn a_bias_with_a_gradient_is_refused() {
    fn check<B: Fp8Matmul + AutodiffBackend>() {
        let [a, b] =
            [(); 2].map(|()| Fp8Tensor::quantize(ones::<B, 2>([4, 4]).require_grad(), E4M3));
        let bias = ones::<B, 1>([4]).cast(FloatDType::BF16).require_grad();
        let product = |bias| scaled_matmul(&a, &b, &ScaledMatmulOptions::default().with_bias(bias));
        let tracked = product(bias.clone()).map(drop);
        refused(tracked, ["the bias has a gradient", "detach().set_require_grad(false)"]);
        let c = ones::<B, 2>([4, 4]).require_grad();
        let tracked = scaled_matmul(&a, &b, &ScaledMatmulOptions::default().with_c(c, 1.0));
        refused(tracked.map(drop), ["C has a gradient"]);
        let d = product(bias.detach().set_require_grad(false)).expect("good").into_float();
        assert_close(&values(d.clone()), &[5.0; 16], 1e-6, "4 + 1");
        assert!(!d.is_require_grad(), "a constant of the graph");
    }
    check::<Autodiff<Flex>>();
    check::<Outer<Flex>>();
    check::<Inner<Flex>>();
}

#[test]
fn the_execution_holds_and_high_precision_does_not() {
    let [a, b] = operands();
    let emulated = Fp8Config::default().with_execution(Execution::FakeQuantized);
    let (_, report) = trace(|| {
        emulated.scope(|| scaled_matmul(&a, &b, &Options::default())).expect("good");
        high_precision(|| scaled_matmul(&a, &b, &Options::default())).expect("good");
    });
    assert_eq!(report.fp8().count(), 2, "{report}");
    // `high_precision` is about the products of models.
    let expected = [Implementation::FakeQuantized, implementation::<Flex>()];
    for (product, expected) in report.products.iter().zip(expected) {
        assert_eq!((product.kind, &product.ran), (ProductKind::ScaledMatmul, &expected));
    }
    assert!(report.to_string().contains("scaled_matmul"), "{report}");
}

/// Codes are multiplied as they are, whichever decorators are around the backend: a product that the filter would take is not quantized
/// a second time, and is one product in the trace.
#[test]
fn no_decorator_quantizes_codes_again() {
    fn product<B: Fp8Matmul>(execution: Execution) -> Vec<f32> {
        // Scales with which no code comes near the largest number.
        let a = Fp8Tensor::quantize_with(random::<B, 2>(5, [32, 48]), E5M2, 2.0).expect("a scale");
        let b = Fp8Tensor::quantize_with(random::<B, 2>(6, [48, 16]), E4M3, 0.5).expect("a scale");
        let config = Fp8Config::default().with_execution(execution);
        let product = || scaled_matmul(&a, &b, &ScaledMatmulOptions::default()).expect("good");
        let (d, report) = trace(|| config.scope(product));
        assert_eq!(report.products.len(), 1, "{report}");
        values(d.into_float())
    }
    for execution in [Execution::Auto, Execution::FakeQuantized] {
        let expected = product::<Flex>(execution);
        assert!(expected.iter().any(|d| *d != 0.0));
        assert_eq!(product::<Autodiff<Flex>>(execution), expected);
        assert_eq!(product::<Fp8Backend<Flex>>(execution), expected);
        assert_eq!(product::<Outer<Flex>>(execution), expected);
        assert_eq!(product::<Inner<Flex>>(execution), expected);
    }
}

#[test]
fn the_wrong_output_is_named() {
    let [a, b] = operands();
    let float = scaled_matmul(&a, &b, &Options::default()).expect("good");
    panics(|| float.into_fp8(), ["use into_float()"]);
    let fp8 = scaled_matmul(&a, &b, &Options::fp8(E4M3, 1.0)).expect("good");
    assert!(fp8.amax.is_none());
    panics(|| fp8.into_float(), ["use into_fp8()"]);
}

/// What cuBLASLt and JAX call GELU is not Burn's.
#[test]
fn gelu_is_the_tanh_approximation() {
    let x: Vec<f32> = (-40..=40).map(|i| i as f32 / 8.0).collect();
    let b = Fp8Tensor::quantize(Tensor::zeros([1, x.len()], &Default::default()), E4M3);
    let options = Options::default().with_bias(bias(&x)).with_activation(Activation::Gelu);
    let d = values(scaled_matmul(&of_ones([1, 1], E4M3), &b, &options).expect("good").into_float());
    for (x, d) in wide(&x).into_iter().zip(wide(&d)) {
        let expected = Function::GeluTanh.of(x);
        assert!((d - expected).abs() <= 1e-6 * x.abs(), "{x}: {d} {expected}");
    }
}

/// A product of any shape, and what is made of it.
#[derive(Clone, Debug)]
struct Any {
    shape: [usize; 3],
    a: Vec<u8>,
    b_t: Vec<u8>,
    formats: [Fp8Format; 2],
    scales: [f32; 2],
    c: Option<(Vec<f32>, f32)>,
    bias: Option<Vec<f32>>,
    activation: Activation,
    /// The format and scale of FP8 output.
    output: Option<(Fp8Format, f32)>,
}

fn codes(format: Fp8Format, len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(fp8::finite_codes(format)), len)
}

fn any_product() -> impl Strategy<Value = Any> {
    let formats = prop::sample::select(vec![[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]]);
    let scale = || (1f32..2.0, -20i32..20).prop_map(|(x, exponent)| x * 2f32.powi(exponent));
    let activation =
        prop::sample::select(vec![Activation::None, Activation::Relu, Activation::Gelu]);
    ([1usize..20, 1usize..20, 1usize..40], formats).prop_flat_map(move |(shape, formats)| {
        let [m, n, k] = shape;
        let out = match formats {
            [E4M3, E4M3] => vec![E4M3],
            _ => vec![E4M3, E5M2],
        };
        // Multiples of 1/8 are bf16.
        let eighths = |len| prop::collection::vec((-100i32..100).prop_map(|x| x as f32 / 8.0), len);
        let (c, bias) = ((eighths(m * n), -3f32..3.0), eighths(n));
        (
            (codes(formats[0], m * k), codes(formats[1], n * k)),
            [scale(), scale()],
            (prop::option::of(c), prop::option::of(bias)),
            activation.clone(),
            prop::option::of((prop::sample::select(out), scale())),
        )
            .prop_map(move |((a, b_t), scales, (c, bias), activation, output)| Any {
                shape,
                a,
                b_t,
                formats,
                scales,
                c,
                bias,
                activation,
                output,
            })
    })
}

fn check_any(any: Any) {
    let Any { shape: [m, n, k], a, b_t, formats, scales, c, bias, activation, output } = any;
    let operand = |codes: &[u8], shape, index: usize| {
        let (format, scale) = (formats[index], scales[index]);
        Matrix::from_bytes(codes.to_vec(), shape, format, scale, &Default::default()).expect("good")
    };
    let options = match output {
        Some((format, scale)) => Options::fp8(format, scale).with_amax(),
        None => Options::default(),
    };
    let mut options = options.with_activation(activation);
    let b = transpose(&fp8::numbers(&b_t, formats[1], scales[1]), [n, k]);
    let mut exact = Exact::product(&fp8::numbers(&a, formats[0], scales[0]), &b, [m, k, n]);
    if let Some((c, beta)) = c {
        let dtype = if output.is_some() { FloatDType::BF16 } else { FloatDType::F32 };
        options = options.with_c(tensor::<Flex, 2>(&c, [m, n]).cast(dtype), beta);
        // In f64: the product of two f32, which is rounded once more than a bias.
        let scaled: Vec<_> = c.iter().map(|c| c * beta).collect();
        exact = exact.plus_bias(&scaled).with_roundings(1);
    }
    if let Some(bias) = bias {
        options = options.with_bias(crate::common::bias(&bias));
        exact = exact.plus_bias(&bias);
    }
    let exact = activated(exact, activation);
    let d = scaled_matmul(&operand(&a, [m, k], 0), &operand(&b_t, [n, k], 1).transpose(), &options)
        .expect("a product of the hardware");
    let Some((format, scale)) = output else {
        return exact.assert(&values(d.into_float()), Sums::F32, "any");
    };
    assert_amax(&exact, Sums::F32, values(d.amax.clone().expect("asked for"))[0], "any");
    let d = d.into_fp8();
    assert_eq!(d.read_scale(), scale);
    let numbers = fp8::numbers(&d.to_bytes(), format, 1.0);
    let numbers: Vec<_> = numbers.into_iter().map(|x| x as f32).collect();
    assert_output(&exact, Sums::F32, Output::Fp8(format, scale), &numbers, "any");
}

proptest! {
    #[test]
    fn every_product_is_that_of_f64_within_the_bound_of_f32(any in any_product()) {
        check_any(any);
    }
}

#[test]
fn f16_output_rounds_and_overflows_as_f16() {
    let a = Fp8Tensor::<Flex, 2>::quantize_with(tensor(&[400.0, 1.0], [2, 1]), E4M3, 1.0);
    let b = Fp8Tensor::quantize_with(tensor(&[400.0, 1.0], [1, 2]), E4M3, 1.0).expect("good");
    let d = scaled_matmul(&a.expect("good"), &b, &Options::float(FloatDType::F16));
    let d = d.expect("good").into_float();
    assert_eq!(d.dtype(), DType::F16);
    // 400 rounds to 416 or 384: to even. 384² is beyond f16.
    assert_eq!(values(d), [f32::INFINITY, 384.0, 384.0, 1.0]);
}
