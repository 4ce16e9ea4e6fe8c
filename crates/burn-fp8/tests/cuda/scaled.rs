//! Scaled products, `scaled_matmul`, on tensor cores, each in one call of cuBLASLt: the ladder of JAX; and small integers again, so that native, emulated and
//! integer arithmetic agree to the last bit, with bias, activation, FP8 output and amax.

use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::tensor::ScaledOutput;

use crate::common::fused::{
    Way, all_layouts_give_the_same_product, ladder_of_jax, ladder_of_jax_by, products_of_torch,
    special_values_stay_visible_or_saturate,
};
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    assert_native, assert_native_but_gelu, emulated, first, integers, is_rehearsal, native,
    of_tensor_cores, product, rounded, trace_single_calls,
};

const SHAPES: [[usize; 3]; 3] = [[48, 64, 80], [130, 256, 96], [512, 512, 256]];

fn climb_the_ladder_of_jax_emulated<B: Fp8Matmul>() {
    emulated().scope(ladder_of_jax::<B>);
}

fn climb_the_ladder_of_jax_natively<B: Fp8Matmul>() {
    let sums = of_tensor_cores::<B>().sums;
    ladder_of_jax_by::<B>(Way {
        run: |multiply, activation| {
            // Where an algorithm may be missing, `Native` would panic.
            let is_gelu = activation == Activation::Gelu;
            let config = match (is_rehearsal::<B>(), is_gelu) {
                (true, _) => emulated(),
                (false, true) => every_matmul(),
                (false, false) => every_matmul().with_execution(Execution::Native),
            };
            let (output, report) = trace_single_calls::<B, _>(|| config.scope(multiply));
            match is_gelu {
                true => assert_native_but_gelu::<B>(&report, "a step of the ladder"),
                false => assert_native::<B>(&report, 1),
            }
            (output, report)
        },
        sums,
    });
}

fn equal_those_of_torch_emulated<B: Fp8Matmul>() {
    emulated().scope(products_of_torch::<B>);
}

/// Natively of any shape: codes are padded.
fn of_every_layout_are_the_same<B: Fp8Matmul>() {
    let ((), report) = trace(all_layouts_give_the_same_product::<B>);
    assert_native::<B>(&report, report.products.len());
    assert!(report.products.len() >= 16);
}

fn of_special_values<B: Fp8Matmul>() {
    let ((), report) = trace(special_values_stay_visible_or_saturate::<B>);
    assert_native_but_gelu::<B>(&report, "special values");
}

/// Integers as codes of scale 1.
fn codes<B: Fp8Matmul>(values: &[f32], shape: [usize; 2], format: Fp8Format) -> Fp8Tensor<B, 2> {
    let codes = values.iter().map(|value| format.encode(*value, Overflow::Saturate)).collect();
    Fp8Tensor::from_bytes(codes, shape, format, 1.0, &Default::default()).expect("they fill it")
}

struct Operands<B: Fp8Matmul> {
    a: Fp8Tensor<B, 2>,
    b: Fp8Tensor<B, 2>,
    bias: Vec<f32>,
    /// The product, without bias.
    exact: Vec<f32>,
}

fn operands<B: Fp8Matmul>([m, k, n]: [usize; 3], formats: [Fp8Format; 2]) -> Operands<B> {
    let (a, b) = (integers(1, m * k, 2), integers(2, k * n, 2));
    Operands {
        exact: product(&a, &b, [m, k, n]),
        a: codes(&a, [m, k], formats[0]),
        b: codes(&b, [k, n], formats[1]),
        bias: integers(3, n, 8),
    }
}

/// The result of a native product and of an emulated one.
fn both<B: Fp8Matmul, R>(
    operands: &Operands<B>,
    options: &ScaledMatmulOptions<B>,
    read: impl Fn(ScaledOutput<B>) -> R,
) -> [R; 2] {
    let run = |config: Fp8Config| {
        let run = || config.scope(|| scaled_matmul(&operands.a, &operands.b, options));
        let (output, report) = trace_single_calls::<B, _>(run);
        (read(output.expect("the hardware has it")), report)
    };
    let (native, report) = run(native::<B>());
    assert_native::<B>(&report, 1);
    [native, run(emulated()).0]
}

fn of_integers_are_exact_with_bias_and_relu<B: Fp8Matmul>() {
    use FloatDType::{BF16, F16, F32};
    for &shape @ [_, _, n] in first(&SHAPES, 2) {
        for formats in [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]] {
            let operands = operands::<B>(shape, formats);
            for (dtype, bias_dtype) in [(F32, BF16), (BF16, BF16), (F16, F16)] {
                for activation in [Activation::None, Activation::Relu] {
                    let bias = tensor::<B, 1>(&operands.bias, [n]).cast(bias_dtype);
                    let options = ScaledMatmulOptions::float(dtype)
                        .with_bias(bias)
                        .with_activation(activation);
                    let expected = operands.exact.iter().enumerate().map(|(index, y)| {
                        let y = y + operands.bias[index % n];
                        if activation == Activation::Relu { y.max(0.0) } else { y }
                    });
                    let expected = rounded(expected.collect(), dtype);
                    let results = both(&operands, &options, |output| values(output.into_float()));
                    for (result, name) in results.iter().zip(["native", "emulated"]) {
                        let what = format!("{name} {shape:?} {formats:?} {dtype:?} {activation:?}");
                        assert_close(result, &expected, 0.0, &what);
                    }
                }
            }
        }
    }
}

/// Codes and amax, with a scale of the output that makes some of it saturate.
fn with_fp8_output_are_exact<B: Fp8Matmul>() {
    for &shape in first(&SHAPES, 2) {
        let operands = operands::<B>(shape, [E4M3, E4M3]);
        let amax = reference::amax(&operands.exact);
        for scale in [0.125, 4.0] {
            let options = ScaledMatmulOptions::fp8(E4M3, scale).with_amax();
            let expected: Vec<_> =
                operands.exact.iter().map(|y| E4M3.encode(y / scale, Overflow::Saturate)).collect();
            let results = both(&operands, &options, |output| {
                let amax: Tensor<B, 1> = output.amax.clone().expect("asked for");
                (values(amax), output.into_fp8().to_bytes())
            });
            for (result, name) in results.into_iter().zip(["native", "emulated"]) {
                assert_eq!(result.0, [amax], "{name} {shape:?}: amax");
                // A zero has either sign.
                let decode =
                    |codes: &[u8]| codes.iter().map(|code| E4M3.decode(*code)).collect::<Vec<_>>();
                let what = format!("{name} {shape:?} {scale}");
                assert_close(&decode(&result.1), &decode(&expected), 0.0, &what);
            }
        }
    }
}

on_cuda_and_rehearsed!([
    climb_the_ladder_of_jax_emulated,
    climb_the_ladder_of_jax_natively,
    equal_those_of_torch_emulated,
    of_every_layout_are_the_same,
    of_special_values,
    of_integers_are_exact_with_bias_and_relu,
    with_fp8_output_are_exact,
]);
