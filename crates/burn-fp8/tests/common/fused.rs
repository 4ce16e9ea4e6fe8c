//! The golden file `fused_matmul`: the ladder of scaled products by JAX, and `torch._scaled_mm`. And scaled products without a file.

use std::cell::RefCell;
use std::collections::BTreeSet;

use burn::tensor::bf16;
use burn_fp8::Gemm;
use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::tensor::ScaledOutput;

use super::*;

/// Relative to the largest magnitude of a result: f32 sums in another order, and another tanh.
const TOLERANCE: f32 = 1e-5;

fn bf16_bits(data: &TensorData) -> Vec<f32> {
    let bits = data.as_bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

/// The place of a number in the order of its type, given its bits without the sign.
fn place(is_negative: bool, magnitude: u16) -> i32 {
    if is_negative { -i32::from(magnitude) } else { i32::from(magnitude) }
}

fn place_of_code(code: u8) -> i32 {
    place(code & 0x80 != 0, u16::from(code & 0x7F))
}

fn place_of_bf16(x: f32) -> i32 {
    place(x.is_sign_negative(), bf16::from_f32(x).to_bits() & 0x7FFF)
}

/// The file, and what of it has been looked at.
struct File {
    golden: Golden,
    seen: RefCell<BTreeSet<String>>,
}

impl File {
    fn open() -> Self {
        Self { golden: Golden::open("fused_matmul"), seen: RefCell::default() }
    }

    fn data(&self, name: String) -> TensorData {
        let data = self.golden.data(&name);
        self.seen.borrow_mut().insert(name);
        data
    }

    fn f32s(&self, name: String) -> Vec<f32> {
        self.data(name).convert::<f32>().to_vec().expect("converted to f32")
    }

    fn codes(&self, name: String) -> Vec<u8> {
        self.data(name).to_vec().expect("codes are u8")
    }

    fn scale(&self, name: String) -> f32 {
        self.f32s(name)[0]
    }

    /// Nothing in the file was passed over.
    fn check_seen(&self, belongs: impl Fn(&str) -> bool) {
        let names: BTreeSet<_> =
            self.golden.names().into_iter().filter(|name| belongs(name)).collect();
        assert!(!names.is_empty());
        assert_eq!(*self.seen.borrow(), names, "every tensor of the file is checked");
    }
}

/// The operands of a case.
struct Case<B: Backend> {
    name: String,
    a: Fp8Tensor<B, 2>,
    /// `[K, N]`, the transpose of what is in the file.
    b: Fp8Tensor<B, 2>,
    /// In bf16 where the device has it.
    bias: Option<Tensor<B, 1>>,
    gemm: Gemm,
    product: Exact,
    bias_values: Vec<f32>,
}

impl<B: Fp8Matmul> Case<B> {
    fn load(
        file: &File,
        case: &serde_json::Value,
        formats: [Fp8Format; 2],
        on_device: bool,
    ) -> Self {
        let name = case["name"].as_str().expect("a name").to_owned();
        let [m, n, k] = ["m", "n", "k"].map(|key| case[key].as_u64().expect("a size") as usize);
        let device = Default::default();
        let operand = |operand: &str, scale: &str, shape, format| {
            let codes = file.codes(format!("{name}/{operand}"));
            let scale = file.scale(format!("{name}/{scale}"));
            match on_device {
                true => {
                    let scale = tensor::<B, 1>(&[scale], [1]);
                    Fp8Tensor::from_bytes(codes, shape, format, scale, &device)
                }
                false => Fp8Tensor::from_bytes(codes, shape, format, scale, &device),
            }
            .expect("codes of the shape")
        };
        let a = operand("a", "scale_a", [m, k], formats[0]);
        let b = operand("b_t", "scale_b", [n, k], formats[1]).transpose();
        let is_biased = case["bias"].as_bool().unwrap_or(true);
        let bias_values = match is_biased {
            true => bf16_bits(&file.data(format!("{name}/bias_bf16"))),
            false => vec![],
        };
        let bias = is_biased.then(|| super::bias::<B>(&bias_values));
        let numbers = |operand: &str, scale: &str, format| {
            let scale = file.scale(format!("{name}/{scale}"));
            reference::numbers(&file.codes(format!("{name}/{operand}")), format, scale)
        };
        let b_t = numbers("b_t", "scale_b", formats[1]);
        let product = Exact::product(
            &numbers("a", "scale_a", formats[0]),
            &reference::transpose(&b_t, [n, k]),
            [m, k, n],
        );
        Self { name, a, b, bias, gemm: Gemm::matrix(m, n, k), product, bias_values }
    }

    /// The result in f64.
    fn exact(&self, bias: bool, activation: Activation) -> Exact {
        let product = self.product.clone();
        let product = if bias { product.plus_bias(&self.bias_values) } else { product };
        product.activated(activation)
    }

    /// Runs the product and checks what the trace says of it: that it is one.
    fn run(
        &self,
        options: ScaledMatmulOptions<B>,
        bias: bool,
        activation: Activation,
        way: &Way<B>,
    ) -> ScaledOutput<B> {
        let options = options.with_activation(activation);
        let options = match bias {
            true => options.with_bias(self.bias.clone().expect("a case with bias")),
            false => options,
        };
        let multiply = || {
            let output = scaled_matmul(&self.a, &self.b, &options);
            output.unwrap_or_else(|error| panic!("{}: {error}", self.name))
        };
        let (output, report) = (way.run)(&multiply, activation);
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

    /// A result in a float type. Where the device has no such type: that this is said, and the result in F32, rounded here.
    fn float(
        &self,
        dtype: FloatDType,
        bias: bool,
        activation: Activation,
        way: &Way<B>,
    ) -> Vec<f32> {
        if B::supports_dtype(&Default::default(), DType::from(dtype)) {
            let d = self.run(ScaledMatmulOptions::float(dtype), bias, activation, way);
            let d = d.into_float();
            assert_eq!(d.dtype(), DType::from(dtype), "{}", self.name);
            return values(d);
        }
        let output = scaled_matmul(&self.a, &self.b, &ScaledMatmulOptions::float(dtype));
        refused(output.map(drop), ["ask for F32 output"]);
        let d = self.run(ScaledMatmulOptions::default(), bias, activation, way).into_float();
        values(d).into_iter().map(|x| bf16::from_f32(x).to_f32()).collect()
    }
}

/// How products are run, and what adds up their terms.
pub struct Way<B: Backend> {
    /// Runs a product that ends with an activation, and traces it.
    #[allow(clippy::type_complexity, reason = "a function of two arguments")]
    pub run: fn(&dyn Fn() -> ScaledOutput<B>, Activation) -> (ScaledOutput<B>, Report),
    pub sums: Sums,
}

/// As the backend does by itself.
fn as_it_is<B: Fp8Matmul>() -> Way<B> {
    Way { run: |multiply, _| trace(multiply), sums: Sums::F32 }
}

/// A step of the ladder, as its name in the file says.
struct Step {
    name: &'static str,
    output: Output,
    bias: bool,
    activation: Activation,
}

#[derive(Clone, Copy, PartialEq)]
enum Output {
    F32,
    Bf16,
    Fp8(Fp8Format),
}

const STEPS: [Step; 8] = {
    use Activation::{Gelu, None, Relu};
    const fn step(name: &'static str, output: Output, bias: bool, activation: Activation) -> Step {
        Step { name, output, bias, activation }
    }
    [
        step("plain", Output::F32, false, None),
        step("bf16_out", Output::Bf16, false, None),
        step("scaled_fp8_out", Output::Fp8(E4M3), false, None),
        step("relu_fp8_out", Output::Fp8(E4M3), false, Relu),
        step("bias_bf16_out", Output::Bf16, true, None),
        step("bias_gelu_f32_out", Output::F32, true, Gelu),
        step("bias_relu_fp8_out", Output::Fp8(E4M3), true, Relu),
        step("fp8_e5m2_out", Output::Fp8(E5M2), false, None),
    ]
};

/// Every step of every case of JAX's ladder.
pub fn ladder_of_jax<B: Fp8Matmul>() {
    ladder_of_jax_by(as_it_is::<B>());
}

pub fn ladder_of_jax_by<B: Fp8Matmul>(way: Way<B>) {
    let file = File::open();
    let steps: Vec<_> = STEPS.iter().map(|step| step.name).collect();
    assert_eq!(file.golden.list("steps"), steps, "every step is here");
    for (index, case) in file.golden.cases().iter().enumerate() {
        let formats = [golden::format(&case["a"]), golden::format(&case["b"])];
        let is_exact = case["exact"].as_bool().expect("a flag");
        let on_device = index % 2 == 1;
        let case = Case::<B>::load(&file, case, formats, on_device);
        for step in &STEPS {
            // cuBLASLt has no E5M2 of two E4M3; the file has no such step.
            if step.output != Output::Fp8(E5M2) || formats.contains(&E5M2) {
                check_step(&file, &case, step, is_exact, on_device, &way);
            }
        }
    }
    file.check_seen(|name| !name.starts_with("torch."));
}

fn check_step<B: Fp8Matmul>(
    file: &File,
    case: &Case<B>,
    step: &Step,
    is_exact: bool,
    on_device: bool,
    way: &Way<B>,
) {
    let what = format!("{}/{}", case.name, step.name);
    let is_exact = is_exact && step.activation != Activation::Gelu;
    let fp8 = |format, scale: f32| match on_device {
        true => ScaledMatmulOptions::fp8(format, tensor::<B, 1>(&[scale], [1])),
        false => ScaledMatmulOptions::fp8(format, scale),
    };
    // The file multiplies by its scale, `D_SCALE` of cuBLASLt; ours is the one to dequantize with.
    let factor = file.scale(format!("{}/scale_d", case.name));
    let scale = 1.0 / factor;
    assert!(!is_exact || 1.0 / scale == factor, "{what}: exact cases scale by powers of two");

    let exact = case.exact(step.bias, step.activation);
    // Both results have errors, the file's those of f32.
    let mut bounds = exact.bounds(way.sums);
    bounds.iter_mut().zip(exact.bounds(Sums::F32)).for_each(|(bound, of_file)| *bound += of_file);
    let is_f32 = way.sums == Sums::F32;
    // At most so many numbers of its type from the one expected, or as near as sums on tensor cores allow.
    let near = |d: Vec<f32>, expected: Vec<f32>, places: [Vec<i32>; 2], limit: u32| {
        assert_eq!([d.len(), expected.len()], [bounds.len(); 2], "{what}");
        let limit = if is_exact { 0 } else { limit };
        for (index, (d, expected)) in d.iter().zip(&expected).enumerate() {
            let apart = places[0][index].abs_diff(places[1][index]);
            let is_bound = !is_exact && !is_f32 && f64::from((d - expected).abs()) <= bounds[index];
            assert!(apart <= limit || is_bound, "{what}[{index}]: {d} instead of {expected}");
        }
    };
    let name = format!("{what}/d");
    match step.output {
        Output::F32 => {
            let expected = file.f32s(name);
            let d = case.float(FloatDType::F32, step.bias, step.activation, way);
            match (is_exact, is_f32) {
                (true, true) => assert_eq!(bits(&d), bits(&expected), "{what}"),
                // A zero has either sign.
                (true, false) => assert_close(&d, &expected, 0.0, &what),
                (false, _) => {
                    exact.assert(&d, way.sums, &what);
                    exact.assert(&expected, Sums::F32, &format!("{what} of the file"));
                }
            }
            if is_f32 {
                assert_close(&d, &expected, TOLERANCE, &what);
            }
        }
        Output::Bf16 => {
            let expected = bf16_bits(&file.data(name));
            let d = case.float(FloatDType::BF16, step.bias, step.activation, way);
            let places = [&d, &expected].map(|d| d.iter().map(|x| place_of_bf16(*x)).collect());
            near(d, expected, places, if is_f32 { 1 } else { 2 });
        }
        Output::Fp8(format) => {
            let expected = file.codes(name);
            let d = case.run(fp8(format, scale), step.bias, step.activation, way).into_fp8();
            assert_eq!((d.format(), d.read_scale(), d.is_transposed()), (format, scale, false));
            let codes = [d.to_bytes(), expected];
            let places = codes.each_ref().map(|d| d.iter().map(|x| place_of_code(*x)).collect());
            let [d, expected] = codes.map(|codes| {
                let numbers = reference::numbers(&codes, format, scale);
                numbers.into_iter().map(|x| x as f32).collect::<Vec<_>>()
            });
            near(d, expected, places, 1);
        }
    }

    // The amax comes with FP8 output; of a step with float output too, asked for with another output.
    let options = fp8(E4M3, scale).with_amax();
    let amax = case.run(options, step.bias, step.activation, way).amax.expect("asked for");
    assert_eq!((amax.dims(), amax.dtype()), ([1], DType::F32));
    let (amax, expected) = (values(amax), file.f32s(format!("{what}/amax")));
    // The largest of numbers that are off by less.
    let bound = bounds.iter().fold(0f64, |largest, bound| largest.max(*bound)) as f32;
    match (is_exact, is_f32) {
        (true, _) => assert_eq!(amax, expected, "{what} amax"),
        (false, true) => assert_close(&amax, &expected, TOLERANCE, &format!("{what} amax")),
        (false, false) => assert!((amax[0] - expected[0]).abs() <= bound, "{what} amax: {amax:?}"),
    }
}

/// Every product of PyTorch.
pub fn products_of_torch<B: Fp8Matmul>() {
    let (file, way) = (File::open(), as_it_is());
    for case in file.golden.list("torch") {
        let out = golden::dtype(&case["out"]);
        let biased = case["bias"].as_bool().expect("a flag");
        let case = Case::<B>::load(&file, &case, [E4M3; 2], false);
        let d = case.float(out, biased, Activation::None, &way);
        let data = file.data(format!("{}/d", case.name));
        let what = format!("{} of torch", case.name);
        match out {
            FloatDType::BF16 => {
                let expected = bf16_bits(&data);
                assert_eq!(d.len(), expected.len(), "{what}");
                for (index, (d, expected)) in d.iter().zip(&expected).enumerate() {
                    let apart = place_of_bf16(*d).abs_diff(place_of_bf16(*expected));
                    assert!(apart <= 1, "{what}[{index}]: {d} instead of {expected}");
                }
            }
            _ => {
                let expected: Vec<f32> = data.to_vec().expect("f32");
                assert_close(&d, &expected, TOLERANCE, &what);
                case.exact(biased, Activation::None).assert(&d, Sums::F32, &what);
            }
        }
        if !biased {
            // It is in the file, though PyTorch takes none with f32 output.
            file.data(format!("{}/bias_bf16", case.name));
        }
    }
    file.check_seen(|name| name.starts_with("torch."));
}

/// Rows, columns, each operand either way: the same bits.
pub fn all_layouts_give_the_same_product<B: Fp8Matmul>() {
    let device = Default::default();
    // Not multiples of four, so that packed codes have bytes to spare.
    for [m, n, k] in [[3, 5, 7], [1, 1, 1], [17, 2, 9], [16, 32, 48]] {
        let mut random = Random(3);
        let mut codes = |len: usize| {
            // Integers: their sums are exact in whatever order they are taken.
            let integer = |bits: u64| (bits % 33) as f32 - 16.0;
            (0..len)
                .map(|_| E4M3.encode(integer(random.bits()), Overflow::Saturate))
                .collect::<Vec<_>>()
        };
        let (a, b_t) = (codes(m * k), codes(n * k));
        let tensor = |codes: &[u8], shape, scale: f32| {
            Fp8Tensor::<B, 2>::from_bytes(codes.to_vec(), shape, E4M3, scale, &device)
                .expect("good")
        };
        let lhs = [
            tensor(&a, [m, k], 0.5),
            tensor(&reference::transpose(&a, [m, k]), [k, m], 0.5).transpose(),
        ];
        let rhs = [
            tensor(&b_t, [n, k], 0.25).transpose(),
            tensor(&reference::transpose(&b_t, [n, k]), [k, n], 0.25),
        ];
        for (tensor, shape, bytes) in
            [(&lhs, [m, k], a.clone()), (&rhs, [k, n], reference::transpose(&b_t, [n, k]))]
        {
            for tensor in tensor {
                assert_eq!((tensor.dims(), tensor.to_bytes()), (shape, bytes.clone()));
                assert_eq!(tensor.transpose().transpose().to_bytes(), bytes);
            }
            let [first, second] = tensor.each_ref().map(|tensor| values(tensor.dequantize()));
            assert_eq!(first, second);
        }
        let product = |a: &Fp8Tensor<B, 2>, b: &Fp8Tensor<B, 2>| {
            let options = ScaledMatmulOptions::fp8(E4M3, 64.0).with_amax();
            let output = scaled_matmul(a, b, &options).expect("good");
            (values(output.amax.clone().expect("asked for")), output.into_fp8().to_bytes())
        };
        let expected = product(&lhs[0], &rhs[0]);
        assert!(expected.0[0] > 0.0);
        for a in &lhs {
            for b in &rhs {
                assert_eq!(product(a, b), expected, "{m}×{n}×{k}");
            }
        }
    }
}

/// NaN, infinities and numbers beyond the largest one, in codes, sums, bias and activation.
pub fn special_values_stay_visible_or_saturate<B: Fp8Matmul>() {
    const INF: f32 = f32::INFINITY;
    let device = Default::default();
    let column = |codes: &[u8], format, scale: f32| {
        Fp8Tensor::<B, 2>::from_bytes(codes.to_vec(), [codes.len(), 1], format, scale, &device)
            .expect("good")
    };
    // The codes of 1, NaN, ∞, -∞, the largest number, and its negative.
    let e5m2 = column(&[0x3C, 0x7E, 0x7C, 0xFC, 0x7B, 0xFB], E5M2, 1.0);
    let one = column(&[0x38], E4M3, 1.0);
    let run = |a: &Fp8Tensor<B, 2>, options: ScaledMatmulOptions<B>| {
        scaled_matmul(a, &one, &options).expect("good")
    };
    let same = |actual: &[f32], expected: &[f32]| {
        assert_close(actual, expected, 0.0, "special values");
    };
    let float = |activation| {
        values(run(&e5m2, ScaledMatmulOptions::default().with_activation(activation)).into_float())
    };
    same(&float(Activation::None), &[1.0, f32::NAN, INF, -INF, 57344.0, -57344.0]);
    if !B::fp8_capability(&device, None).is_native() {
        // What cuBLASLt's epilogues make of NaN and infinities is not documented.
        same(&float(Activation::Relu), &[1.0, f32::NAN, INF, 0.0, 57344.0, 0.0]);
        let gelu = float(Activation::Gelu);
        assert!((gelu[0] - 0.841_192).abs() < 1e-6, "{gelu:?}");
        same(&gelu[1..], &[f32::NAN, INF, f32::NAN, 57344.0, -0.0]);
    }

    // FP8 output clamps, infinities too; the amax tells what there was.
    for (format, nan, max) in [(E4M3, 0x7F, 0x7E), (E5M2, 0x7E, 0x7B)] {
        let output = run(&e5m2, ScaledMatmulOptions::fp8(format, 1.0).with_amax());
        same(&values(output.amax.clone().expect("asked for")), &[f32::NAN]);
        let d = output.into_fp8().to_bytes();
        assert!(format.is_nan(d[1]) && d[1] & 0x7F == nan, "{d:x?}");
        assert_eq!([d[2], d[3]], [max, max | 0x80], "{d:x?}");
    }
    let finite = column(&[0x3C, 0x7B, 0xFB, 0x00, 0x80], E5M2, 1.0);
    let output = run(&finite, ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
    assert_eq!(values(output.amax.clone().expect("asked for")), [57344.0], "before clamping");
    assert_eq!(output.into_fp8().to_bytes()[..4], [0x38, 0x7E, 0xFE, 0x00]);
    let infinite = column(&[0x3C, 0xFC], E5M2, 1.0);
    let output = run(&infinite, ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
    assert_eq!(values(output.amax.expect("asked for")), [INF]);

    // A sum beyond f32, by its scale.
    let huge = column(&[0x7B], E5M2, f32::MAX / 2.0);
    same(&values(run(&huge, ScaledMatmulOptions::default()).into_float()), &[INF]);
    assert_eq!(
        run(&huge, ScaledMatmulOptions::fp8(E4M3, 2f32.powi(126))).into_fp8().to_bytes(),
        [0x7E]
    );

    // Scales on the device are not looked at: one that is NaN gives NaN.
    let nan = tensor::<B, 1>(&[f32::NAN], [1]);
    let tensor = Fp8Tensor::<B, 2>::from_bytes(vec![0x38], [1, 1], E4M3, nan, &device);
    let d = run(&tensor.expect("not looked at"), ScaledMatmulOptions::default());
    same(&values(d.into_float()), &[f32::NAN]);
}
