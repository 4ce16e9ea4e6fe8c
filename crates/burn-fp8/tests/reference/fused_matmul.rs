//! Scaled products against the golden file `fused_matmul`, and the last step of its ladder, inference with calibrated static scales,
//! against f64: on the CPU backends. Wgpu has a file of its own.

use burn_fp8::burn_fp8_core::scale;

use crate::common::fused::{ladder_of_jax, products_of_torch};
use crate::common::*;

tests_on_cpu!([ladder_of_jax, products_of_torch, inference_with_calibrated_scales]);

#[test]
fn decorators_climb_the_ladder_of_jax() {
    ladder_of_jax::<Fp8Backend<Flex>>();
    ladder_of_jax::<Autodiff<Flex>>();
    ladder_of_jax::<Outer<Flex>>();
}

#[test]
fn products_of_the_decorator_are_those_of_torch_and_infer_with_calibrated_scales() {
    products_of_torch::<Outer<Flex>>();
    inference_with_calibrated_scales::<Outer<Flex>>();
}

/// `x` `[M, K]`, first layer to `[M, N]`, second one to `[M, P]`.
const M: usize = 24;
const K: usize = 48;
const N: usize = 40;
const P: usize = 32;

/// `x · w + bias` in f64, of `x` `[M, from]` and `w` `[to, from]`, then an activation.
fn layer(x: &[f64], w: &[f64], bias: &[f32], activation: Activation) -> Exact {
    let to = bias.len();
    let from = w.len() / to;
    let product = Exact::product(x, &reference::transpose(w, [to, from]), [M, from, to]);
    product.plus_bias(bias).activated(activation)
}

/// What a tensor of scale `scale` holds by definition.
fn quantized(x: &[f32], scale: f32) -> Vec<f64> {
    reference::quantize_dequantize_by(x, scale, E4M3)
}

/// gelu(x · w1 + b1) → E4M3 with a static scale; · w2 + b2 → f32.
fn inference_with_calibrated_scales<B: Fp8Matmul>() {
    let mut random = Random(17);
    let mut units = |count| random.units(count);
    let weights = [units(N * K), units(P * N)];
    // Multiples of 1/8 are bf16.
    let biases = [units(N), units(P)]
        .map(|bias| bias.iter().map(|x| (x * 8.0).round() / 8.0).collect::<Vec<f32>>());
    let batches = [units(M * K), units(M * K)];
    // Beyond the batches, within the margin.
    let input: Vec<f32> = units(M * K).iter().map(|x| 1.5 * x).collect();

    let rows = |x: &[f32]| tensor::<B, 2>(x, [M, K]);
    let w = [(0, [N, K]), (1, [P, N])].map(|(index, shape)| {
        Fp8Tensor::quantize(tensor::<B, 2>(&weights[index], shape), E4M3).transpose()
    });
    let first = |options: ScaledMatmulOptions<B>| {
        options.with_bias(bias(&biases[0])).with_activation(Activation::Gelu)
    };
    let exact_w = weights.each_ref().map(|w| quantized(w, reference::scale(w, E4M3)));
    let exact_first = |x: &[f64]| layer(x, &exact_w[0], &biases[0], Activation::Gelu).values;

    // Calibration, beside the same in f64.
    let (mut measured, mut expected) = ([0f32; 2], [0f32; 2]);
    for batch in &batches {
        let x = Fp8Tensor::quantize(rows(batch), E4M3);
        let options = first(ScaledMatmulOptions::fp8(E4M3, 1.0)).with_amax();
        let hidden = scaled_matmul(&x, &w[0], &options).expect("good");
        let hidden = values(hidden.amax.expect("asked for"))[0];
        measured = [measured[0].max(values(rows(batch).abs().max())[0]), measured[1].max(hidden)];
        let exact = exact_first(&quantized(batch, reference::scale(batch, E4M3)));
        let exact: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
        expected =
            [expected[0].max(reference::amax(batch)), expected[1].max(reference::amax(&exact))];
    }
    // A margin of 1 is a factor of two.
    let scales =
        measured.map(|amax| scale::from_amax(amax, E4M3, Recipe::current().with_margin(1)));
    let [input_scale, hidden_scale] = expected.map(|amax| 2.0 * amax / 448.0);
    assert_relative(&scales, &[input_scale, hidden_scale], 1e-6, "scales");

    // Inference.
    let x = Fp8Tensor::quantize_with(rows(&input), E4M3, scales[0]).expect("good");
    let options = first(ScaledMatmulOptions::fp8(E4M3, scales[1]));
    let hidden = scaled_matmul(&x, &w[0], &options).expect("good").into_fp8();
    let y = ScaledMatmulOptions::default().with_bias(bias(&biases[1]));
    let y = values(scaled_matmul(&hidden, &w[1], &y).expect("good").into_float());

    // Codes in the order of their numbers: a sum of f32 may end on the other side of a boundary, so that the code is the next one.
    let place = |x: f64| {
        let place = reference::magnitudes(E4M3).iter().position(|magnitude| *magnitude == x.abs());
        place.expect("a number of E4M3") as i32 * if x < 0.0 { -1 } else { 1 }
    };
    let numbers = reference::numbers(&hidden.to_bytes(), E4M3, 1.0);
    let exact = exact_first(&quantized(&input, input_scale));
    let apart: Vec<u32> = (numbers.iter().zip(&exact))
        .map(|(x, exact)| {
            let exact = reference::round(exact / f64::from(hidden_scale), E4M3);
            place(*x).abs_diff(place(exact))
        })
        .collect();
    assert_eq!(apart.len(), M * N);
    assert!(apart.iter().all(|places| *places <= 1), "{apart:?}");
    assert!(apart.iter().sum::<u32>() <= (M * N / 100) as u32, "{apart:?}");

    // The second layer, of the codes that came out of the first one.
    let hidden: Vec<f64> = numbers.iter().map(|x| x * f64::from(scales[1])).collect();
    let exact = layer(&hidden, &exact_w[1], &biases[1], Activation::None);
    exact.assert(&y, Sums::F32, "second layer");
}
