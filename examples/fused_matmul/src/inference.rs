//! The last step: two layers with static scales, calibrated before.

use anyhow::{Context, Result};
use burn::tensor::{DType, FloatDType};
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::burn_fp8_core::scale;
use burn_fp8::{
    Activation, Fp8Matmul, Fp8Tensor, Recipe, ScaledMatmulOptions, scaled_matmul, trace,
};

use crate::args::Args;
use crate::data::{self, Matrix, Random};
use crate::ladder::{bf16, bias_tensor, floats, ran, tensor};

/// How many batches the scales are calibrated with.
const BATCHES: usize = 4;

/// gelu(x @ w1 + bias1) @ w2 + bias2: `[M, K]` to `[M, N]` to `[M, K]`.
pub fn run<B: Fp8Matmul>(args: &Args) -> Result<String> {
    let Args { m, n, k, .. } = *args;
    let mut random = Random::new(args.seed.wrapping_add(1));
    let deviation = |inputs: usize| 1.0 / (inputs as f32).sqrt();
    let (w1, w2) = (random.matrix([n, k], deviation(k)), random.matrix([k, n], deviation(n)));
    let (bias1, bias2) = (bf16(random.normals(n, 0.5)), bf16(random.normals(k, 0.5)));

    // Weights are quantized once, in the layout that the tensor cores read.
    let quantize = |w| Fp8Tensor::quantize(tensor::<B>(w), E4M3).transpose();
    let (q1, q2) = (quantize(&w1), quantize(&w2));
    let first = |options: ScaledMatmulOptions<B>| {
        options.with_bias(bias_tensor::<B>(&bias1)).with_activation(Activation::Gelu)
    };

    // Calibration: the largest magnitudes of the input and of what the first layer gives, which the product itself reports.
    let (mut input_amax, mut hidden_amax) = (0f32, 0f32);
    for _ in 0..BATCHES {
        let x = random.matrix([m, k], 1.0);
        input_amax = x.values.iter().fold(input_amax, |amax, x| amax.max(x.abs()));
        let x = Fp8Tensor::quantize(tensor::<B>(&x), E4M3);
        let output =
            scaled_matmul(&x, &q1, &first(ScaledMatmulOptions::fp8(E4M3, 1.0)).with_amax())?;
        hidden_amax = hidden_amax.max(floats(output.amax.context("asked for")?)[0]);
    }
    // A power of two of headroom for inputs that were not among the samples.
    let static_scale = |amax| scale::from_amax(amax, E4M3, Recipe::current().with_margin(1));
    let [input_scale, hidden_scale] = [input_amax, hidden_amax].map(static_scale);

    // Inference: nothing is measured any more, and the hidden numbers never leave FP8.
    let x = random.matrix([m, k], 1.0);
    let dtype = match B::supports_dtype(&B::Device::default(), DType::BF16) {
        true => FloatDType::BF16,
        false => FloatDType::F32,
    };
    let (y, report) = trace(|| {
        let x = Fp8Tensor::quantize_with(tensor::<B>(&x), E4M3, input_scale)?;
        let hidden = scaled_matmul(&x, &q1, &first(ScaledMatmulOptions::fp8(E4M3, hidden_scale)))?;
        let options = ScaledMatmulOptions::float(dtype).with_bias(bias_tensor::<B>(&bias2));
        scaled_matmul(&hidden.into_fp8(), &q2, &options)
    });
    let y = floats(y?.into_float());

    let hidden = data::linear(&x.to_f64(), &w1.to_f64(), Some(&bias1), Activation::Gelu);
    let expected: Matrix<f64> = data::linear(&hidden, &w2.to_f64(), Some(&bias2), Activation::None);
    let error = data::error(&y, &expected);
    Ok(format!(
        "7. inference with calibrated static scales, two layers\n    \
         h = gelu(x @ w1 + b1) → E4M3; y = h @ w2 + b2 → {dtype:?}\n    \
         calibrated on {BATCHES} batches: x scale {input_scale:.3e}, h scale {hidden_scale:.3e}\n    \
         {}\n    \
         error with quantization {error:.1e}\n",
        ran(&report)
    ))
}
