//! Scaled products: the golden file `fused_matmul`, which is the ladder of JAX and `torch._scaled_mm`, and products without a file.

use burn_fp8::Gemm;
use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::tensor::ScaledOutput;
use burn_fp8_test_support::operations::Function;

use super::*;

/// A product in f64 after its activation. The slope of GELU is at most 1.13; on a GPU it perhaps has its own tanh, of 11 bits (PTX, tanh.approx.f32).
pub fn activated(exact: Exact, activation: Activation) -> Exact {
    match activation {
        Activation::None => exact,
        Activation::Relu => exact.mapped(|x| Function::Relu.of(x), 1.0, 0.0),
        Activation::Gelu => exact.mapped(|x| Function::GeluTanh.of(x), 1.13, 2f64.powi(-11)),
    }
}

/// The type of a result, and the scale of FP8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    Float(FloatDType),
    Fp8(Fp8Format, f32),
}

/// Asserts that a result is that of f64, as near as its sums and its type allow; codes are given as their numbers, without the scale.
#[track_caller]
pub fn assert_output(exact: &Exact, sums: Sums, output: Output, actual: &[f32], what: &str) {
    let (format, scale) = match output {
        Output::Float(dtype) => {
            return exact.clone().rounded(float(dtype)).assert(actual, sums, what);
        }
        Output::Fp8(format, scale) => (format, f64::from(scale)),
    };
    assert_eq!(actual.len(), exact.values.len(), "{what}");
    for ((actual, exact), bound) in actual.iter().zip(&exact.values).zip(exact.bounds(sums)) {
        // Rounding keeps order: the code lies between those of the ends of what the sum, times the reciprocal, may be.
        let bound = bound + 3.0 * f64::from(f32::EPSILON) * (exact.abs() + bound);
        let [low, high] =
            [exact - bound, exact + bound].map(|end| fp8::round(end / scale, format) as f32);
        assert!(low <= *actual && *actual <= high, "{what}: {actual} not in {low}..={high}");
    }
}

/// Asserts that an amax is that of a product, as near as its sums allow.
#[track_caller]
pub fn assert_amax(exact: &Exact, sums: Sums, amax: f32, what: &str) {
    let largest = exact.values.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    let bound = exact.bounds(sums).iter().fold(0f64, |largest, bound| largest.max(*bound));
    assert!((f64::from(amax) - largest).abs() <= bound, "{what}: {amax:e} not {largest:e}");
}

/// How products are run and traced, given the activation that they end with.
pub type Run<B> = fn(&dyn Fn() -> ScaledOutput<B>, Activation) -> (ScaledOutput<B>, Report);

/// A product of the file.
struct Case<B: Backend> {
    name: String,
    a: Fp8Tensor<B, 2>,
    /// `[K, N]`, the transpose of what is in the file.
    b: Fp8Tensor<B, 2>,
    bias: Vec<f32>,
    gemm: Gemm,
    exact: Exact,
    run: Run<B>,
}

impl<B: Fp8Matmul> Case<B> {
    fn load(
        file: &Golden,
        case: &serde_json::Value,
        formats: [Fp8Format; 2],
        on_device: bool,
        run: Run<B>,
    ) -> Self {
        let name = case["name"].as_str().expect("a name").to_owned();
        let [m, n, k] = ["m", "n", "k"].map(|key| case[key].as_u64().expect("a size") as usize);
        let part = |part: &str| format!("{name}/{part}");
        let operand = |codes: &str, scale: &str, shape, format| {
            let (codes, scale) = (file.u8s(&part(codes)), file.f32s(&part(scale))[0]);
            let numbers = fp8::numbers(&codes, format, scale);
            (of_codes(codes, shape, format, scale, on_device), numbers)
        };
        let (a, of_a) = operand("a", "scale_a", [m, k], formats[0]);
        let (b_t, of_b) = operand("b_t", "scale_b", [n, k], formats[1]);
        let exact = Exact::product(&of_a, &transpose(&of_b, [n, k]), [m, k, n]);
        let bias = file.wide_bf16(&part("bias_bf16"));
        Self { a, b: b_t.transpose(), bias, gemm: Gemm::matrix(m, n, k), exact, run, name }
    }

    /// The result in f64.
    fn exact(&self, bias: bool, activation: Activation) -> Exact {
        let exact = self.exact.clone();
        activated(if bias { exact.plus_bias(&self.bias) } else { exact }, activation)
    }

    /// Runs the product, which is one in the trace.
    fn run(
        &self,
        options: ScaledMatmulOptions<B>,
        bias: bool,
        activation: Activation,
    ) -> ScaledOutput<B> {
        let mut options = options.with_activation(activation);
        if bias {
            options = options.with_bias(super::bias(&self.bias));
        }
        let multiply = || scaled_matmul(&self.a, &self.b, &options).expect(&self.name);
        let (output, report) = (self.run)(&multiply, activation);
        let [product] = &report.products[..] else { panic!("{}: {report}", self.name) };
        assert_eq!(
            (product.kind, product.role, product.gemm),
            (ProductKind::ScaledMatmul, GemmRole::Output, self.gemm)
        );
        for (operand, tensor) in [(product.lhs, &self.a), (product.rhs, &self.b)] {
            let operand = operand.expect("in FP8");
            assert_eq!((operand.format, operand.scale), (tensor.format(), tensor.read_scale()));
        }
        output
    }

    /// The numbers of a result. Where the device has no such type, this is said, and F32 is rounded here.
    fn numbers(&self, output: Output, on_device: bool, bias: bool, of: Activation) -> Vec<f32> {
        match output {
            Output::Fp8(format, scale) => {
                let d = self.run(to_fp8(format, scale, on_device), bias, of).into_fp8();
                assert_eq!((d.format(), d.read_scale(), d.is_transposed()), (format, scale, false));
                narrow(fp8::numbers(&d.to_bytes(), format, 1.0))
            }
            Output::Float(dtype) if B::supports_dtype(&Default::default(), dtype.into()) => {
                let d = self.run(ScaledMatmulOptions::float(dtype), bias, of).into_float();
                assert_eq!(d.dtype(), DType::from(dtype), "{}", self.name);
                values(d)
            }
            Output::Float(dtype) => {
                let options = ScaledMatmulOptions::float(dtype);
                let refusal = scaled_matmul(&self.a, &self.b, &options).map(drop);
                refused(refusal, ["ask for F32 output"]);
                let d = values(self.run(ScaledMatmulOptions::default(), bias, of).into_float());
                d.into_iter().map(|x| burn::tensor::bf16::from_f32(x).to_f32()).collect()
            }
        }
    }
}

/// A matrix of codes whose scale lies on the device, or on the host.
fn of_codes<B: Fp8Matmul>(
    codes: Vec<u8>,
    shape: [usize; 2],
    format: Fp8Format,
    scale: f32,
    on_device: bool,
) -> Fp8Tensor<B, 2> {
    let device = Default::default();
    let matrix = match on_device {
        true => Fp8Tensor::from_bytes(codes, shape, format, tensor::<B, 1>(&[scale], [1]), &device),
        false => Fp8Tensor::from_bytes(codes, shape, format, scale, &device),
    };
    matrix.expect("codes of the shape")
}

fn to_fp8<B: Fp8Matmul>(format: Fp8Format, scale: f32, on_device: bool) -> ScaledMatmulOptions<B> {
    match on_device {
        true => ScaledMatmulOptions::fp8(format, tensor::<B, 1>(&[scale], [1])),
        false => ScaledMatmulOptions::fp8(format, scale),
    }
}

fn narrow(numbers: Vec<f64>) -> Vec<f32> {
    numbers.into_iter().map(|x| x as f32).collect()
}

/// The steps of the ladder: their names, the output in FP8 or in a float type, whether there is a bias, the activation.
const STEPS: [(&str, Result<Fp8Format, FloatDType>, bool, Activation); 8] = {
    use Activation::{Gelu, None, Relu};
    use FloatDType::{BF16, F32};
    [
        ("plain", Err(F32), false, None),
        ("bf16_out", Err(BF16), false, None),
        ("scaled_fp8_out", Ok(E4M3), false, None),
        ("relu_fp8_out", Ok(E4M3), false, Relu),
        ("bias_bf16_out", Err(BF16), true, None),
        ("bias_gelu_f32_out", Err(F32), true, Gelu),
        ("bias_relu_fp8_out", Ok(E4M3), true, Relu),
        ("fp8_e5m2_out", Ok(E5M2), false, None),
    ]
};

/// Every step of every case of JAX's ladder.
pub fn ladder_of_jax<B: Fp8Matmul>() {
    ladder_of_jax_by::<B>(|multiply, _| trace(multiply), Sums::F32);
}

/// The same, run in some way, which adds up products by `sums`. Results are those of f64, as the file's are; exact ones are the file's.
pub fn ladder_of_jax_by<B: Fp8Matmul>(run: Run<B>, sums: Sums) {
    let file = golden("fused_matmul");
    assert_eq!(file.cases("steps"), STEPS.map(|step| step.0), "every step is here");
    let mut compared = 0;
    for (index, case) in file.cases("cases").iter().enumerate() {
        let formats = [golden::format(&case["a"]), golden::format(&case["b"])];
        let (is_exact, on_device) = (case["exact"].as_bool().expect("a flag"), index % 2 == 1);
        let case = Case::<B>::load(&file, case, formats, on_device, run);
        // The file multiplies by its scale, `D_SCALE` of cuBLASLt; ours is the one to dequantize with.
        let scale = 1.0 / file.f32s(&format!("{}/scale_d", case.name))[0];
        for (step, output, bias, activation) in STEPS {
            // cuBLASLt has no E5M2 of two E4M3; the file has no such step.
            if output == Ok(E5M2) && !formats.contains(&E5M2) {
                continue;
            }
            compared += 1;
            let what = format!("{}/{step}", case.name);
            let part = |part: &str| format!("{what}/{part}");
            let (output, of_file) = match output {
                Ok(format) => {
                    let numbers = fp8::numbers(&file.u8s(&part("d")), format, 1.0);
                    (Output::Fp8(format, scale), narrow(numbers))
                }
                Err(FloatDType::BF16) => {
                    (Output::Float(FloatDType::BF16), file.wide_bf16(&part("d")))
                }
                Err(dtype) => (Output::Float(dtype), file.f32s(&part("d"))),
            };
            let exact = case.exact(bias, activation);
            let d = case.numbers(output, on_device, bias, activation);
            assert_output(&exact, sums, output, &d, &what);
            assert_output(&exact, Sums::F32, output, &of_file, &format!("{what} of the file"));
            // The amax comes with FP8 output; of a step with float output too, asked for with another output.
            let options = to_fp8(E4M3, scale, on_device).with_amax();
            let amax = case.run(options, bias, activation).amax.expect("asked for");
            assert_eq!((amax.dims(), amax.dtype()), ([1], DType::F32));
            let (amax, amax_of_file) = (values(amax), file.f32s(&part("amax")));
            assert_amax(&exact, sums, amax[0], &what);
            assert_amax(&exact, Sums::F32, amax_of_file[0], &format!("{what} of the file"));
            if is_exact && activation != Activation::Gelu {
                assert_eq!((d, amax), (of_file, amax_of_file), "{what}");
            }
        }
    }
    let steps = file.names().into_iter().filter(|name| name.ends_with("/amax"));
    assert_eq!(steps.count(), compared, "every step of the file is compared");
}

/// Every product of PyTorch.
pub fn products_of_torch<B: Fp8Matmul>() {
    let file = golden("fused_matmul");
    for case in file.cases("torch") {
        let (dtype, biased) = (golden::dtype(&case["out"]), case["bias"] == true);
        let output = Output::Float(dtype);
        let case = Case::<B>::load(&file, case, [E4M3; 2], false, |multiply, _| trace(multiply));
        let name = format!("{}/d", case.name);
        let of_torch = match dtype {
            FloatDType::BF16 => file.wide_bf16(&name),
            _ => file.f32s(&name),
        };
        let exact = case.exact(biased, Activation::None);
        let d = case.numbers(output, false, biased, Activation::None);
        assert_output(&exact, Sums::F32, output, &d, &name);
        assert_output(&exact, Sums::F32, output, &of_torch, &format!("{name} of torch"));
    }
}

/// Rows, columns, each operand either way: the same bits.
pub fn all_layouts_give_the_same_product<B: Fp8Matmul>() {
    // Not multiples of four, so that packed codes have bytes to spare.
    for [m, n, k] in [[3, 5, 7], [1, 1, 1], [17, 2, 9], [16, 32, 48]] {
        let mut random = Random(3);
        // Integers: their sums are exact in whatever order they are taken.
        let mut codes = |len: usize| random.picks(&fp8::integer_codes(E4M3), len);
        // Rows that lie in order, and columns that do.
        let both = |codes: &[u8], shape: [usize; 2], scale| {
            let turned = [shape[1], shape[0]];
            let tensors: [Fp8Tensor<B, 2>; 2] = [
                of_codes(codes.to_vec(), shape, E4M3, scale, false),
                of_codes(transpose(codes, shape), turned, E4M3, scale, false).transpose(),
            ];
            for tensor in &tensors {
                assert_eq!((tensor.dims(), tensor.to_bytes()), (shape, codes.to_vec()));
                assert_eq!(tensor.transpose().transpose().to_bytes(), codes);
            }
            let [first, second] = tensors.each_ref().map(|tensor| values(tensor.dequantize()));
            assert_eq!(first, second);
            tensors
        };
        let (lhs, rhs) = (both(&codes(m * k), [m, k], 0.5), both(&codes(k * n), [k, n], 0.25));
        let product = |a: &Fp8Tensor<B, 2>, b: &Fp8Tensor<B, 2>| {
            let options = ScaledMatmulOptions::fp8(E4M3, 64.0).with_amax();
            let output = scaled_matmul(a, b, &options).expect("good");
            (values(output.amax.clone().expect("asked for")), output.into_fp8().to_bytes())
        };
        let expected = product(&lhs[0], &rhs[0]);
        assert!(expected.0[0] > 0.0);
        for (a, b) in lhs.iter().flat_map(|a| rhs.each_ref().map(|b| (a, b))) {
            assert_eq!(product(a, b), expected, "{m}×{n}×{k}");
        }
    }
}

/// NaN, infinities and numbers beyond the largest one, in codes, sums, bias and activation.
pub fn special_values_stay_visible_or_saturate<B: Fp8Matmul>() {
    const INF: f32 = f32::INFINITY;
    let column =
        |codes: &[u8], scale| of_codes(codes.to_vec(), [codes.len(), 1], E5M2, scale, false);
    let one = of_codes::<B>(vec![0x38], [1, 1], E4M3, 1.0, false);
    // The codes of 1, NaN, ∞, -∞, the largest number, and its negative.
    let all = column(&[0x3C, 0x7E, 0x7C, 0xFC, 0x7B, 0xFB], 1.0);
    let run = |a: &Fp8Tensor<B, 2>, options: ScaledMatmulOptions<B>| {
        scaled_matmul(a, &one, &options).expect("good")
    };
    let same = |actual: &[f32], expected: &[f32]| assert_close(actual, expected, 0.0, "special");
    let float = |a: &Fp8Tensor<B, 2>, activation| {
        values(run(a, ScaledMatmulOptions::default().with_activation(activation)).into_float())
    };
    let amax = |output: &ScaledOutput<B>| values(output.amax.clone().expect("asked for"));
    same(&float(&all, Activation::None), &[1.0, f32::NAN, INF, -INF, 57344.0, -57344.0]);
    if !capability::<B>().is_native() {
        // What cuBLASLt's epilogues make of NaN and infinities is not documented.
        same(&float(&all, Activation::Relu), &[1.0, f32::NAN, INF, 0.0, 57344.0, 0.0]);
        let gelu = float(&all, Activation::Gelu);
        assert!((gelu[0] - 0.841_192).abs() < 1e-6, "{gelu:?}");
        same(&gelu[1..], &[f32::NAN, INF, f32::NAN, 57344.0, -0.0]);
    }

    // FP8 output clamps, infinities too; the amax tells what there was.
    for (format, nan, max) in [(E4M3, 0x7F, 0x7E), (E5M2, 0x7E, 0x7B)] {
        let output = run(&all, ScaledMatmulOptions::fp8(format, 1.0).with_amax());
        same(&amax(&output), &[f32::NAN]);
        let d = output.into_fp8().to_bytes();
        assert!(format.is_nan(d[1]) && d[1] & 0x7F == nan, "{d:x?}");
        assert_eq!([d[2], d[3]], [max, max | 0x80], "{d:x?}");
    }
    for (codes, most, expected) in [
        (&[0x3C, 0x7B, 0xFB, 0x00][..], 57344.0, &[0x38, 0x7E, 0xFE, 0x00][..]),
        (&[0x3C, 0xFC], INF, &[0x38, 0xFE]),
    ] {
        let output = run(&column(codes, 1.0), ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
        assert_eq!(amax(&output), [most], "before clamping");
        assert_eq!(output.into_fp8().to_bytes(), expected);
    }
    // A sum beyond f32, by its scale; and scales on the device, which are not looked at: one that is NaN gives NaN.
    let huge = column(&[0x7B], f32::MAX / 2.0);
    same(&float(&huge, Activation::None), &[INF]);
    let output = run(&huge, ScaledMatmulOptions::fp8(E4M3, 2f32.powi(126)));
    assert_eq!(output.into_fp8().to_bytes(), [0x7E]);
    let nan = of_codes(vec![0x38], [1, 1], E4M3, f32::NAN, true);
    same(&float(&nan, Activation::None), &[f32::NAN]);
}
