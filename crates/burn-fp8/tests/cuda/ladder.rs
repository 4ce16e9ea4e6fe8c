//! The golden ladder of scaled products, by JAX, on tensor cores, each in one call of cuBLASLt. Emulation follows it more closely:
//! `scaled.rs`.

use burn::tensor::FloatDType;
use burn_fp8::Fp8Format::E5M2;
use burn_fp8::scaled::ScaledOutput;
use burn_fp8::{Activation, Execution, Fp8Format, Fp8Matmul, ScaledMatmulOptions, scaled_matmul};

use crate::common::exact::Sums;
use crate::common::fused::{Case, File, Output, STEPS, Step, bf16_bits, bf16_order, order};
use crate::common::{assert_close, every_matmul, golden, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{
    assert_native, assert_native_but_gelu, decoded, emulated, is_rehearsal, of_tensor_cores,
    trace_single_calls,
};

fn run<B: Fp8Matmul>(
    case: &Case<B>,
    step: &Step,
    options: ScaledMatmulOptions<B>,
    what: &str,
) -> ScaledOutput<B> {
    let options = options.with_activation(step.activation);
    let options = match step.bias {
        true => options.with_bias(case.bias.clone().expect("every case has one")),
        false => options,
    };
    // Where an algorithm may be missing, `Native` would panic.
    let is_gelu = step.activation == Activation::Gelu;
    let config = match (is_rehearsal::<B>(), is_gelu) {
        (true, _) => emulated(),
        (false, true) => every_matmul(),
        (false, false) => every_matmul().with_execution(Execution::Native),
    };
    let run = || config.scope(|| scaled_matmul(&case.a, &case.b, &options));
    let (output, report) = trace_single_calls::<B, _>(run);
    match is_gelu {
        true => assert_native_but_gelu::<B>(&report, what),
        false => assert_native::<B>(&report, 1),
    }
    output.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Asserts that each number is at most `limit` numbers of its type from the one expected, or as near as sums on tensor cores allow.
#[track_caller]
fn assert_near(
    actual: &[f32],
    expected: &[f32],
    bounds: &[f64],
    apart: impl Fn(usize) -> u32,
    limit: u32,
    what: &str,
) {
    assert_eq!([actual.len(), expected.len()], [bounds.len(); 2], "{what}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let near = apart(index) <= limit || f64::from((a - e).abs()) <= bounds[index];
        assert!(near, "{what}[{index}]: {a} instead of {e}");
    }
}

fn check<B: Fp8Matmul>(file: &File, case: &Case<B>, step: &Step, is_exact: bool) {
    let what = format!("{}/{}", case.name, step.name);
    // The file multiplies by its scale; ours is the one to dequantize with.
    let scale = 1.0 / file.scale(format!("{}/scale_d", case.name));
    let exact = case.exact(step.bias, step.activation);
    let name = format!("{what}/d");
    // Both results have errors, the file's those of f32.
    let (sums, of_file) = (of_tensor_cores::<B>().sums, exact.bounds(Sums::F32));
    let bounds: Vec<f64> =
        exact.bounds(sums).iter().zip(of_file).map(|(ours, of_file)| ours + of_file).collect();
    match step.output {
        Output::F32 => {
            let d = values(run(case, step, ScaledMatmulOptions::default(), &what).into_float());
            let expected = file.f32s(name);
            match is_exact {
                true => assert_close(&d, &expected, 0.0, &what),
                false => {
                    exact.assert(&d, sums, &what);
                    exact.assert(&expected, Sums::F32, &format!("{what} of the file"));
                }
            }
        }
        Output::Bf16 => {
            let options = ScaledMatmulOptions::float(FloatDType::BF16);
            let d = values(run(case, step, options, &what).into_float());
            let expected = bf16_bits(&file.data(name));
            let apart = |index: usize| bf16_order(d[index]).abs_diff(bf16_order(expected[index]));
            match is_exact {
                true => assert_close(&d, &expected, 0.0, &what),
                false => assert_near(&d, &expected, &bounds, apart, 2, &what),
            }
        }
        Output::Fp8(format) => {
            let options = ScaledMatmulOptions::fp8(format, scale);
            let d = run(case, step, options, &what).into_fp8().to_bytes();
            let expected = file.codes(name);
            let apart = |index: usize| order(d[index]).abs_diff(order(expected[index]));
            let numbers = |codes: &[u8]| -> Vec<f32> {
                decoded(format, codes).iter().map(|number| number * scale).collect()
            };
            let (d_numbers, expected_numbers) = (numbers(&d), numbers(&expected));
            match is_exact {
                true => assert_close(&d_numbers, &expected_numbers, 0.0, &what),
                false => assert_near(&d_numbers, &expected_numbers, &bounds, apart, 1, &what),
            }
        }
    }
    // It comes with FP8 output; of a step with float output too, asked for with another output.
    let options = ScaledMatmulOptions::fp8(Fp8Format::E4M3, scale).with_amax();
    let amax = values(run(case, step, options, &what).amax.expect("asked for"));
    let expected = file.f32s(format!("{what}/amax"));
    match is_exact {
        true => assert_eq!(amax, expected, "{what} amax"),
        false => {
            // The largest of numbers that are off by less.
            let bound = bounds.iter().fold(0f64, |largest, bound| largest.max(*bound));
            assert_near(&amax, &expected, &[bound], |_| u32::MAX, 0, &format!("{what} amax"));
        }
    }
}

fn of_jax_is_climbed_natively<B: Fp8Matmul>() {
    let file = File::open();
    for entry in file.golden.cases() {
        let formats = [golden::format(&entry["a"]), golden::format(&entry["b"])];
        let case = Case::<B>::load(&file, &entry, formats, false);
        for step in &STEPS {
            // cuBLASLt has no E5M2 of two E4M3; the file has no such step.
            if step.output == Output::Fp8(E5M2) && !formats.contains(&E5M2) {
                continue;
            }
            let is_exact = entry["exact"] == true && step.activation != Activation::Gelu;
            check(&file, &case, step, is_exact);
        }
    }
    file.check_seen(|name| !name.starts_with("torch."));
}

on_cuda_and_rehearsed!(of_jax_is_climbed_natively);
