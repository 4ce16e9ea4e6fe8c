//! The golden ladder of scaled products, by JAX, on tensor cores, each in one call of cuBLASLt. Emulation follows it more closely:
//! `scaled.rs`.

use burn::tensor::{FloatDType, Tensor, bf16};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::scaled::ScaledOutput;
use burn_fp8::{
    Activation, Execution, Fp8Format, Fp8Matmul, Fp8Tensor, ScaledMatmulOptions, scaled_matmul,
};

use crate::common::golden::{Golden, format};
use crate::common::{assert_close, every_matmul, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{
    assert_native, assert_native_but_gelu, decoded, emulated, is_rehearsal, trace_single_calls,
};

/// Relative to the largest magnitude: tensor cores keep 14 bits or so of each sum. What is near zero beside the rest may be off by
/// many of its own last places for it.
const TOLERANCE: f32 = 1e-3;

#[derive(Clone, Copy, PartialEq)]
enum Output {
    F32,
    Bf16,
    Fp8(Fp8Format),
}

/// Of every case of the file: name of the step, type of the output, bias, activation.
const STEPS: [(&str, Output, bool, Activation); 8] = [
    ("plain", Output::F32, false, Activation::None),
    ("bf16_out", Output::Bf16, false, Activation::None),
    ("scaled_fp8_out", Output::Fp8(E4M3), false, Activation::None),
    ("relu_fp8_out", Output::Fp8(E4M3), false, Activation::Relu),
    ("bias_bf16_out", Output::Bf16, true, Activation::None),
    ("bias_gelu_f32_out", Output::F32, true, Activation::Gelu),
    ("bias_relu_fp8_out", Output::Fp8(E4M3), true, Activation::Relu),
    ("fp8_e5m2_out", Output::Fp8(E5M2), false, Activation::None),
];

struct Case<B: Fp8Matmul> {
    golden: Golden,
    name: String,
    a: Fp8Tensor<B, 2>,
    b: Fp8Tensor<B, 2>,
    bias: Tensor<B, 1>,
}

impl<B: Fp8Matmul> Case<B> {
    fn load(case: &serde_json::Value) -> Self {
        let golden = Golden::open("fused_matmul");
        let name = case["name"].as_str().expect("a name").to_owned();
        let [m, n, k] = ["m", "n", "k"].map(|key| case[key].as_u64().expect("a size") as usize);
        let operand = |codes: &str, scale: &str, shape, format| {
            let codes = golden.codes(&format!("{name}/{codes}"));
            let (scale, _) = golden.f32(&format!("{name}/{scale}"));
            Fp8Tensor::from_bytes(codes, shape, format, scale[0], &Default::default())
                .expect("codes of the shape")
        };
        let a = operand("a", "scale_a", [m, k], format(&case["a"]));
        let b = operand("b_t", "scale_b", [n, k], format(&case["b"])).transpose();
        let bias = tensor::<B, 1>(&halves(&golden, &format!("{name}/bias_bf16")), [n]);
        Self { bias: bias.cast(FloatDType::BF16), golden, name, a, b }
    }

    fn run(&self, options: ScaledMatmulOptions<B>, step: &Step<'_>) -> ScaledOutput<B> {
        let options = options.with_activation(step.activation);
        let options = if step.bias { options.with_bias(self.bias.clone()) } else { options };
        // Where an algorithm may be missing, `Native` would panic.
        let is_gelu = step.activation == Activation::Gelu;
        let config = match (is_rehearsal::<B>(), is_gelu) {
            (true, _) => emulated(),
            (false, true) => every_matmul(),
            (false, false) => every_matmul().with_execution(Execution::Native),
        };
        let run = || config.scope(|| scaled_matmul(&self.a, &self.b, &options));
        let (output, report) = trace_single_calls::<B, _>(run);
        match is_gelu {
            true => assert_native_but_gelu::<B>(&report, &step.what),
            false => assert_native::<B>(&report, 1),
        }
        output.unwrap_or_else(|error| panic!("{}: {error}", step.what))
    }
}

struct Step<'a> {
    what: String,
    output: &'a Output,
    bias: bool,
    activation: Activation,
    /// Integers whose sums fit in what tensor cores keep.
    exact: bool,
}

/// A tensor of bf16 bits.
fn halves(golden: &Golden, name: &str) -> Vec<f32> {
    let data = golden.data(name);
    let bits = data.as_bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

/// Places in the order of the numbers that a type has; `sign` is its sign bit.
fn apart(a: u16, b: u16, sign: u16) -> u32 {
    let order = |bits: u16| {
        let magnitude = i32::from(bits & (sign - 1));
        if bits & sign == 0 { magnitude } else { -magnitude }
    };
    order(a).abs_diff(order(b))
}

/// At most `limit` numbers of the type apart, or close to each other beside the largest.
#[track_caller]
fn assert_near(
    actual: &[f32],
    expected: &[f32],
    limit: u32,
    apart: impl Fn(usize) -> u32,
    what: &str,
) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let near = apart(index) <= limit || (a - e).abs() <= TOLERANCE * largest;
        assert!(near, "{what}[{index}]: {a} instead of {e}");
    }
}

fn check<B: Fp8Matmul>(case: &Case<B>, step: &Step<'_>, scale: f32) {
    let what = &step.what;
    let name = format!("{what}/d");
    let tolerance = if step.exact { 0.0 } else { TOLERANCE };
    match *step.output {
        Output::F32 => {
            let d = values(case.run(ScaledMatmulOptions::default(), step).into_float());
            assert_close(&d, &case.golden.f32(&name).0, tolerance, what);
        }
        Output::Bf16 => {
            let options = ScaledMatmulOptions::float(FloatDType::BF16);
            let d = values(case.run(options, step).into_float());
            let expected = halves(&case.golden, &name);
            let bits = |value: f32| bf16::from_f32(value).to_bits();
            let apart = |index: usize| apart(bits(d[index]), bits(expected[index]), 0x8000);
            match step.exact {
                true => assert_close(&d, &expected, 0.0, what),
                false => assert_near(&d, &expected, 2, apart, what),
            }
        }
        Output::Fp8(format) => {
            let options = ScaledMatmulOptions::fp8(format, scale);
            let d = case.run(options, step).into_fp8().to_bytes();
            let expected = case.golden.codes(&name);
            let apart = |index: usize| apart(d[index].into(), expected[index].into(), 0x80);
            let (values, numbers) = (decoded(format, &d), decoded(format, &expected));
            match step.exact {
                true => assert_close(&values, &numbers, 0.0, what),
                false => assert_near(&values, &numbers, 1, apart, what),
            }
        }
    }
    // It comes with FP8 output; of a step with float output too, asked for with another output.
    let options = ScaledMatmulOptions::fp8(E4M3, scale).with_amax();
    let amax = values(case.run(options, step).amax.expect("asked for"));
    let (expected, _) = case.golden.f32(&format!("{what}/amax"));
    assert_close(&amax, &expected, tolerance, &format!("{what} amax"));
}

fn of_jax_is_climbed_natively<B: Fp8Matmul>() {
    let golden = Golden::open("fused_matmul");
    assert_eq!(golden.list("steps"), STEPS.map(|(name, ..)| name), "every step is here");
    for entry in golden.cases() {
        let case = Case::<B>::load(&entry);
        let mixed = case.a.format() != case.b.format();
        // The file multiplies by its scale; ours is the one to dequantize with.
        let scale = 1.0 / golden.f32(&format!("{}/scale_d", case.name)).0[0];
        for (name, output, bias, activation) in &STEPS {
            // cuBLASLt has no E5M2 of two E4M3; the file has no such step.
            if *output == Output::Fp8(E5M2) && !mixed {
                continue;
            }
            let step = Step {
                what: format!("{}/{name}", case.name),
                output,
                bias: *bias,
                activation: *activation,
                exact: entry["exact"] == true && *activation != Activation::Gelu,
            };
            check(&case, &step, scale);
        }
    }
}

on_cuda_and_rehearsed!(of_jax_is_climbed_natively);
