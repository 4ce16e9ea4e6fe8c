//! Scaled products against the golden file `fused_matmul`, and the last step of its ladder, inference with calibrated static scales,
//! against f64: on the CPU backends. Wgpu has a file of its own.

use burn_fp8::burn_fp8_core::scale;

use crate::common::fused::{Output, activated, assert_output, ladder_of_jax, products_of_torch};
use crate::common::*;

tests_on_cpu!([ladder_of_jax, products_of_torch, inference_with_calibrated_scales]);

#[test]
fn decorators_do_the_same() {
    ladder_of_jax::<Fp8Backend<Flex>>();
    ladder_of_jax::<Autodiff<Flex>>();
    ladder_of_jax::<Outer<Flex>>();
    products_of_torch::<Outer<Flex>>();
    inference_with_calibrated_scales::<Outer<Flex>>();
}

/// gelu(x · w1 + b1) → E4M3 with a static scale; · w2 + b2 → f32: `[24, 48]` to `[24, 40]` to `[24, 32]`.
fn inference_with_calibrated_scales<B: Fp8Matmul>() {
    const M: usize = 24;
    const SIZES: [usize; 3] = [48, 40, 32];
    let mut random = Random(17);
    let [first, second] = [[SIZES[0], SIZES[1]], [SIZES[1], SIZES[2]]].map(|[k, n]| {
        let weight = random.units(n * k);
        // Multiples of 1/8 are bf16.
        let bias: Vec<_> = random.units(n).iter().map(|x| (x * 8.0).round() / 8.0).collect();
        let holds = transpose(&fp8::quantize_dequantize(&weight, E4M3), [n, k]);
        let weight = Fp8Tensor::quantize(tensor::<B, 2>(&weight, [n, k]), E4M3).transpose();
        (weight, holds, bias, [M, k, n])
    });
    let exact = |(_, holds, bias, shape): &(_, Vec<f64>, Vec<f32>, _), x: &[f64], activation| {
        activated(Exact::product(x, holds, *shape).plus_bias(bias), activation)
    };
    let to_hidden = |x: &Fp8Tensor<B, 2>, options: ScaledMatmulOptions<B>| {
        let options = options.with_bias(bias(&first.2)).with_activation(Activation::Gelu);
        scaled_matmul(x, &first.0, &options).expect("good")
    };

    // Calibration, beside the same in f64.
    let (mut measured, mut expected) = ([0f32; 2], [0f32; 2]);
    for _ in 0..2 {
        let batch = random.units(M * SIZES[0]);
        let x = Fp8Tensor::quantize(tensor(&batch, [M, SIZES[0]]), E4M3);
        let hidden = to_hidden(&x, ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
        let hidden = values(hidden.amax.expect("asked for"))[0];
        let exact = exact(&first, &fp8::quantize_dequantize(&batch, E4M3), Activation::Gelu);
        let exact: Vec<_> = exact.values.iter().map(|x| *x as f32).collect();
        let amaxes = [(fp8::amax(&batch), fp8::amax(&batch)), (hidden, fp8::amax(&exact))];
        for (i, (found, exact)) in amaxes.into_iter().enumerate() {
            (measured[i], expected[i]) = (measured[i].max(found), expected[i].max(exact));
        }
    }
    // A margin of 1 is a factor of two.
    let scales =
        measured.map(|amax| scale::from_amax(amax, E4M3, Recipe::current().with_margin(1)));
    assert_relative(&scales, &expected.map(|amax| 2.0 * amax / 448.0), 1e-6, "scales");

    // Inference, of an input beyond the batches, within the margin; the scale of what lies between lies on the device.
    let input: Vec<f32> = random.units(M * SIZES[0]).iter().map(|x| 1.5 * x).collect();
    let x = Fp8Tensor::quantize_with(tensor(&input, [M, SIZES[0]]), E4M3, scales[0]).expect("good");
    let on_device = tensor::<B, 1>(&[scales[1]], [1]);
    let hidden = to_hidden(&x, ScaledMatmulOptions::fp8(E4M3, on_device)).into_fp8();
    assert_eq!(hidden.read_scale(), scales[1]);
    let exact_hidden =
        exact(&first, &fp8::quantize_dequantize_by(&input, scales[0], E4M3), Activation::Gelu);
    let numbers: Vec<_> = values(hidden.values());
    assert_output(&exact_hidden, Sums::F32, Output::Fp8(E4M3, scales[1]), &numbers, "first layer");
    let options = ScaledMatmulOptions::default().with_bias(bias(&second.2));
    let y = values(scaled_matmul(&hidden, &second.0, &options).expect("good").into_float());
    // Of the codes that came out of the first one.
    let hidden = fp8::numbers(&hidden.to_bytes(), E4M3, scales[1]);
    exact(&second, &hidden, Activation::None).assert(&y, Sums::F32, "second layer");
}
