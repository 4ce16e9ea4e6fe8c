//! The ladder by JAX.

use burn::tensor::{DType, FloatDType};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::{Activation, Fp8Format, Fp8Matmul, ScaledMatmulOptions};

use super::{Case, File, TOLERANCE, bf16_bits, bf16_order, order};
use crate::common::exact::Sums;
use crate::common::{assert_close, bits, golden, tensor, values};

/// A step of the ladder, as its name in the file says.
pub struct Step {
    pub name: &'static str,
    pub output: Output,
    pub bias: bool,
    pub activation: Activation,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Output {
    F32,
    Bf16,
    Fp8(Fp8Format),
}

pub const STEPS: [Step; 8] = {
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
    let file = File::open();
    let steps: Vec<_> = STEPS.iter().map(|step| step.name).collect();
    assert_eq!(file.golden.list("steps"), steps, "every step is here");
    for (index, case) in file.golden.cases().iter().enumerate() {
        let formats = [golden::format(&case["a"]), golden::format(&case["b"])];
        let exact = case["exact"].as_bool().expect("a flag");
        let on_device = index % 2 == 1;
        let case = Case::<B>::load(&file, case, formats, on_device);
        let factor = file.scale(format!("{}/scale_d", case.name));
        for step in &STEPS {
            // cuBLASLt has no E5M2 of two E4M3; the file has no such step.
            if step.output != Output::Fp8(E5M2) || formats.contains(&E5M2) {
                check_step(&file, &case, step, exact, factor, on_device);
            }
        }
    }
    file.check_seen(|name| !name.starts_with("torch."));
}

fn check_step<B: Fp8Matmul>(
    file: &File,
    case: &Case<B>,
    step: &Step,
    exact: bool,
    factor: f32,
    on_device: bool,
) {
    let what = format!("{}/{}", case.name, step.name);
    let exact = exact && step.activation != Activation::Gelu;
    let fp8 = |format, scale: f32| match on_device {
        true => ScaledMatmulOptions::fp8(format, tensor::<B, 1>(&[scale], [1])),
        false => ScaledMatmulOptions::fp8(format, scale),
    };
    // The file multiplies by its scale, `D_SCALE` of cuBLASLt; ours is the one to dequantize with.
    let scale = 1.0 / factor;
    assert!(!exact || 1.0 / scale == factor, "{what}: exact cases scale by powers of two");

    let expected = format!("{what}/d");
    match step.output {
        Output::F32 => {
            let expected = file.f32s(expected);
            let d = case.float(FloatDType::F32, step.bias, step.activation);
            match exact {
                true => assert_eq!(bits(&d), bits(&expected), "{what}"),
                false => {
                    assert_close(&d, &expected, TOLERANCE, &what);
                    case.exact(step.bias, step.activation).assert(&d, Sums::F32, &what);
                }
            }
        }
        Output::Bf16 => {
            let expected = bf16_bits(&file.data(expected));
            let d = case.float(FloatDType::BF16, step.bias, step.activation);
            assert_eq!(d.len(), expected.len(), "{what}");
            for (index, (d, expected)) in d.iter().zip(&expected).enumerate() {
                let apart = bf16_order(*d).abs_diff(bf16_order(*expected));
                assert!(apart <= u32::from(!exact), "{what}[{index}]: {d} instead of {expected}");
            }
        }
        Output::Fp8(format) => {
            let expected = file.codes(expected);
            let d = case.run(fp8(format, scale), step.bias, step.activation).into_fp8();
            assert_eq!((d.format(), d.read_scale(), d.is_transposed()), (format, scale, false));
            let d = d.to_bytes();
            assert_eq!(d.len(), expected.len(), "{what}");
            for (index, (d, expected)) in d.iter().zip(&expected).enumerate() {
                let apart = order(*d).abs_diff(order(*expected));
                assert!(apart <= u32::from(!exact), "{what}[{index}]: {d} instead of {expected}");
            }
        }
    }

    // The amax comes with FP8 output; of a step with float output too, asked for with another output.
    let options = fp8(E4M3, scale).with_amax();
    let amax = case.run(options, step.bias, step.activation).amax.expect("asked for");
    assert_eq!((amax.dims(), amax.dtype()), ([1], DType::F32));
    let (amax, expected) = (values(amax), file.f32s(format!("{what}/amax")));
    match exact {
        true => assert_eq!(amax, expected, "{what} amax"),
        false => assert_close(&amax, &expected, TOLERANCE, &format!("{what} amax")),
    }
}
