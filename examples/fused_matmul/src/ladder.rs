//! The steps with one product each.

use std::fmt;

use anyhow::Result;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_fp8::Fp8Format::{self, E4M3, E5M2};
use burn_fp8::report::ProductReport;
use burn_fp8::tensor::ScaledMatrix;
use burn_fp8::{
    Activation, Fp8Matmul, Fp8Tensor, Report, ScaledMatmulOptions, scaled_matmul, trace,
};

use crate::args::Args;
use crate::data::{self, Matrix, Random};

/// What is told of a step.
pub struct Step {
    pub title: &'static str,
    pub formula: String,
    pub operands: [String; 2],
    pub report: Report,
    /// Against the same codes in f64, and against the numbers before quantization in f64.
    pub errors: [f64; 2],
    /// As returned, and in f64.
    pub amax: Option<[f32; 2]>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, formula, operands: [a, b], report, errors, amax } = self;
        writeln!(f, "{title}\n    {formula}\n    a {a}\n    b {b}\n    {}", ran(report))?;
        if let Some([amax, expected]) = amax {
            writeln!(f, "    amax {amax:.4}, in f64 {expected:.4}")?;
        }
        let [same, before] = errors;
        writeln!(f, "    error {same:.1e}, with quantization {before:.1e}")
    }
}

/// What ran, by the trace.
pub fn ran(report: &Report) -> String {
    let product =
        |ProductReport { kind, gemm, ran, .. }: &ProductReport| format!("{kind} {gemm}, {ran}");
    let products: Vec<_> = report.products.iter().map(product).collect();
    let count = match products.len() {
        1 => "1 product".to_string(),
        count => format!("{count} products"),
    };
    format!("ran {count}: {}", products.join("; "))
}

/// The numbers of all steps.
struct Problem {
    /// `[M, K]`.
    x: Matrix<f32>,
    /// `[N, K]`: the layout in which tensor cores want the right operand.
    w: Matrix<f32>,
    /// `[N]`, bf16 numbers: of this type cuBLASLt takes a bias.
    bias: Vec<f32>,
}

/// Runs the steps from the first one to the amax.
pub fn steps<B: Fp8Matmul>(args: &Args) -> Result<Vec<Step>> {
    let mut random = Random::new(args.seed);
    let problem = Problem {
        x: random.matrix([args.m, args.k], 1.0),
        w: random.matrix([args.n, args.k], 0.5),
        bias: bf16(random.normals(args.n, 1.0)),
    };
    // Scales of one: the codes are the numbers.
    let unscaled = |matrix, format| Fp8Tensor::quantize_with(tensor::<B>(matrix), format, 1.0);
    let scaled = |matrix, format| Fp8Tensor::quantize(tensor::<B>(matrix), format);
    let (x, w) = (scaled(&problem.x, E4M3), scaled(&problem.w, E4M3));
    let (plain_x, plain_w) = (unscaled(&problem.x, E4M3)?, unscaled(&problem.w, E4M3)?);
    let mixed_w = unscaled(&problem.w, E5M2)?;
    // For the output: with room for four standard deviations of a sum of K products.
    let scale = 4.0 * 0.5 * (args.k as f32).sqrt() / E4M3.max();
    let (float, fp8) = (ScaledMatmulOptions::default(), ScaledMatmulOptions::fp8(E4M3, scale));
    let to_fp8 = &format!("→ E4M3, scale {scale:.3e}")[..];
    let biased =
        fp8.clone().with_bias(bias_tensor(&problem.bias)).with_activation(Activation::Gelu);
    let relu = fp8.clone().with_activation(Activation::Relu);
    let ([plain, mixed], scaled) = ([[&plain_x, &plain_w], [&plain_x, &mixed_w]], [&x, &w]);
    let gelu = "d = gelu(a @ b + bias)";
    let (none, bias) = ((Activation::None, false), (Activation::Gelu, true));
    [
        ("1. plain: E4M3 @ E4M3", "d = a @ b", "→ f32", plain, float.clone(), none),
        ("2. mixed: E4M3 @ E5M2", "d = a @ b", "→ f32", mixed, float, none),
        ("3. scaled inputs and a scaled FP8 output", "d = a @ b", to_fp8, scaled, fp8, none),
        ("4. + ReLU", "d = relu(a @ b)", to_fp8, scaled, relu, (Activation::Relu, false)),
        ("5. + bias and GELU", gelu, to_fp8, scaled, biased.clone(), bias),
        ("6. + amax", "d, amax = gelu(a @ b + bias)", to_fp8, scaled, biased.with_amax(), bias),
    ]
    .into_iter()
    .map(|(title, formula, output, operands, options, in_f64)| {
        run_step(&problem, title, format!("{formula} {output}"), operands, options, in_f64)
    })
    .collect()
}

/// Runs a step whose product is, in f64, that of this activation, with or without the bias.
fn run_step<B: Fp8Matmul>(
    problem: &Problem,
    title: &'static str,
    formula: String,
    [a, w]: [&Fp8Tensor<B, 2>; 2],
    options: ScaledMatmulOptions<B>,
    (activation, biased): (Activation, bool),
) -> Result<Step> {
    // No code moves: `w` lies as the tensor cores read it.
    let b = w.transpose();
    let (output, report) = trace(|| scaled_matmul(a, &b, &options));
    let output = output?;
    let amax = output.amax.clone().map(floats);
    let d = match output.d {
        ScaledMatrix::Float(d) => floats(d),
        ScaledMatrix::Fp8(d) => floats(d.dequantize()),
    };
    let bias = biased.then_some(&problem.bias[..]);
    let same = data::linear(&numbers(a), &numbers(w), bias, activation);
    let before = data::linear(&problem.x.to_f64(), &problem.w.to_f64(), bias, activation);
    let largest = same.values.iter().fold(0f64, |amax, x| amax.max(x.abs())) as f32;
    Ok(Step {
        title,
        formula,
        operands: [describe(a), describe(&b)],
        report,
        errors: [data::error(&d, &same), data::error(&d, &before)],
        amax: amax.map(|amax| [amax[0], largest]),
    })
}

fn describe<B: Backend>(tensor: &Fp8Tensor<B, 2>) -> String {
    let [rows, columns] = tensor.dims();
    let layout = if tensor.is_transposed() { "column by column" } else { "row by row" };
    let (format, scale): (Fp8Format, f32) = (tensor.format(), tensor.read_scale());
    format!("[{rows}, {columns}] {format}, scale {scale:.3e}, {layout}")
}

/// What codes and scale stand for, in f64.
fn numbers<B: Fp8Matmul>(tensor: &Fp8Tensor<B, 2>) -> Matrix<f64> {
    Matrix { values: floats(tensor.dequantize()), shape: tensor.dims() }.to_f64()
}

pub fn tensor<B: Backend>(matrix: &Matrix<f32>) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(matrix.values.clone(), matrix.shape), &Default::default())
}

/// A bias of the type that cuBLASLt takes; f32 stands for it where a device has no bf16.
pub fn bias_tensor<B: Backend>(bias: &[f32]) -> Tensor<B, 1> {
    let device = Default::default();
    let data = TensorData::new(bias.to_vec(), [bias.len()]);
    let tensor = Tensor::<B, 1>::from_data(data, &device);
    match B::supports_dtype(&device, DType::BF16) {
        true => tensor.cast(FloatDType::BF16),
        false => tensor,
    }
}

/// Rounded to bf16.
pub fn bf16(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|x| burn::tensor::bf16::from_f32(x).to_f32()).collect()
}

pub fn floats<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
