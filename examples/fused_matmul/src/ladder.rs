//! The steps with one product each.

use anyhow::Result;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_fp8::Fp8Format::{self, E4M3, E5M2};
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
    let bias = |options: ScaledMatmulOptions<B>| options.with_bias(bias_tensor::<B>(&problem.bias));
    // Scales of one: the codes are the numbers.
    let unscaled = |matrix, format| Fp8Tensor::quantize_with(tensor::<B>(matrix), format, 1.0);
    let scaled = |matrix, format| Fp8Tensor::quantize(tensor::<B>(matrix), format);
    let (x, w) = (scaled(&problem.x, E4M3), scaled(&problem.w, E4M3));
    // For the output: with room for four standard deviations of a sum of K products.
    let deviation = 0.5 * (args.k as f32).sqrt();
    let out = 4.0 * deviation / E4M3.max();
    let fp8 = || ScaledMatmulOptions::fp8(E4M3, out);
    let to_fp8 = format!("→ E4M3, scale {out:.3e}");
    let (none, relu, gelu) = (Activation::None, Activation::Relu, Activation::Gelu);

    let run =
        |title, formula: String, [a, b]: [&Fp8Tensor<B, 2>; 2], options, activation, biased| {
            run_step(&problem, title, formula, [a, b], options, activation, biased)
        };
    let (plain_x, plain_w) = (unscaled(&problem.x, E4M3)?, unscaled(&problem.w, E4M3)?);
    let mixed_w = unscaled(&problem.w, E5M2)?;
    Ok(vec![
        run(
            "1. plain: E4M3 @ E4M3",
            "d = a @ b → f32".into(),
            [&plain_x, &plain_w],
            ScaledMatmulOptions::default(),
            none,
            false,
        )?,
        run(
            "2. mixed: E4M3 @ E5M2",
            "d = a @ b → f32".into(),
            [&plain_x, &mixed_w],
            ScaledMatmulOptions::default(),
            none,
            false,
        )?,
        run(
            "3. scaled inputs and a scaled FP8 output",
            format!("d = a @ b {to_fp8}"),
            [&x, &w],
            fp8(),
            none,
            false,
        )?,
        run(
            "4. + ReLU",
            format!("d = relu(a @ b) {to_fp8}"),
            [&x, &w],
            fp8().with_activation(relu),
            relu,
            false,
        )?,
        run(
            "5. + bias and GELU",
            format!("d = gelu(a @ b + bias) {to_fp8}"),
            [&x, &w],
            bias(fp8()).with_activation(gelu),
            gelu,
            true,
        )?,
        run(
            "6. + amax",
            format!("d, amax = gelu(a @ b + bias) {to_fp8}"),
            [&x, &w],
            bias(fp8()).with_activation(gelu).with_amax(),
            gelu,
            true,
        )?,
    ])
}

fn run_step<B: Fp8Matmul>(
    problem: &Problem,
    title: &'static str,
    formula: String,
    [a, w]: [&Fp8Tensor<B, 2>; 2],
    options: ScaledMatmulOptions<B>,
    activation: Activation,
    biased: bool,
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
pub fn numbers<B: Fp8Matmul>(tensor: &Fp8Tensor<B, 2>) -> Matrix<f64> {
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
