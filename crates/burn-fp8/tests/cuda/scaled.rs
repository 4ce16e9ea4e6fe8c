//! Scaled products, `scaled_matmul`, on tensor cores, each in one call of cuBLASLt: the ladder of JAX; and small integers again, so that native, emulated and
//! integer arithmetic agree to the last bit, with bias, activation, FP8 output and amax.

use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::tensor::ScaledOutput;

use crate::common::fused::{
    activated, all_layouts_give_the_same_product, ladder_of_jax, ladder_of_jax_by,
    products_of_torch, special_values_stay_visible_or_saturate,
};
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    assert_native, assert_native_but_gelu, emulated, first, integers, is_rehearsal, native,
    of_tensor_cores, rounded, trace_single_calls,
};

const SHAPES: [[usize; 3]; 3] = [[48, 64, 80], [130, 256, 96], [512, 512, 256]];

fn climb_the_ladder_of_jax_emulated<B: Fp8Matmul>() {
    emulated().scope(ladder_of_jax::<B>);
}

fn climb_the_ladder_of_jax_natively<B: Fp8Matmul>() {
    let run = |multiply: &dyn Fn() -> ScaledOutput<B>, activation| {
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
    };
    ladder_of_jax_by::<B>(run, of_tensor_cores::<B>().sums);
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

/// Integers as codes of scale 1, and their product.
fn operands<B: Fp8Matmul>(
    [m, k, n]: [usize; 3],
    formats: [Fp8Format; 2],
) -> ([Fp8Tensor<B, 2>; 2], Exact) {
    let codes = |values: &[f32], shape, format: Fp8Format| {
        let code = |x: &f32| fp8::encode(f64::from(*x), format, Overflow::Saturate);
        let codes = values.iter().map(code).collect();
        Fp8Tensor::from_bytes(codes, shape, format, 1.0, &Default::default()).expect("they fill it")
    };
    let (a, b) = (integers(1, m * k, 2), integers(2, k * n, 2));
    let operands = [codes(&a, [m, k], formats[0]), codes(&b, [k, n], formats[1])];
    (operands, Exact::product(&wide(&a), &wide(&b), [m, k, n]))
}

/// The result of a native product and of an emulated one.
fn both<B: Fp8Matmul, R>(
    [a, b]: &[Fp8Tensor<B, 2>; 2],
    options: &ScaledMatmulOptions<B>,
    read: impl Fn(ScaledOutput<B>) -> R,
) -> [R; 2] {
    let run = |config: Fp8Config| {
        let run = || config.scope(|| scaled_matmul(a, b, options));
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
        let numbers = integers(3, n, 8);
        for formats in [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]] {
            let (operands, exact) = operands::<B>(shape, formats);
            for (dtype, bias_dtype, activation) in [(F32, BF16), (BF16, BF16), (F16, F16)]
                .into_iter()
                .flat_map(|(d, b)| [Activation::None, Activation::Relu].map(|a| (d, b, a)))
            {
                let options = ScaledMatmulOptions::float(dtype)
                    .with_bias(tensor::<B, 1>(&numbers, [n]).cast(bias_dtype))
                    .with_activation(activation);
                let exact = activated(exact.clone().plus_bias(&numbers), activation).values;
                let expected = rounded(exact.iter().map(|x| *x as f32).collect(), dtype);
                for result in both(&operands, &options, |output| values(output.into_float())) {
                    let what = format!("{shape:?} {formats:?} {dtype:?} {activation:?}");
                    assert_close(&result, &expected, 0.0, &what);
                }
            }
        }
    }
}

/// Codes and amax, with a scale of the output that makes some of it saturate.
fn with_fp8_output_are_exact<B: Fp8Matmul>() {
    for &shape in first(&SHAPES, 2) {
        let (operands, exact) = operands::<B>(shape, [E4M3, E4M3]);
        let amax = exact.values.iter().fold(0f64, |amax, y| amax.max(y.abs())) as f32;
        for scale in [0.125, 4.0] {
            let options = ScaledMatmulOptions::fp8(E4M3, scale).with_amax();
            let expected = exact.values.iter().map(|y| fp8::round(y / f64::from(scale), E4M3));
            let expected: Vec<_> = expected.collect();
            for result in both(&operands, &options, |output| {
                let amax: Tensor<B, 1> = output.amax.clone().expect("asked for");
                (values(amax), output.into_fp8().to_bytes())
            }) {
                // A zero has either sign.
                let numbers = fp8::numbers(&result.1, E4M3, 1.0);
                assert_eq!(
                    (result.0, numbers),
                    (vec![amax], expected.clone()),
                    "{shape:?} {scale}"
                );
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
