//! Bias and activations.

use burn_fp8_cublaslt::*;

use crate::data::Case;
use crate::device::{Gpu, check};
use crate::each_type;

const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Gelu];

/// The types of bias that go with an output.
fn bias_types(d: DataType) -> &'static [DataType] {
    match d {
        DataType::F16 => &[DataType::F16],
        DataType::Bf16 | DataType::F32 => &[DataType::Bf16],
        DataType::Fp8(_) => &[DataType::Bf16, DataType::F16],
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn bias_and_activations_are_right() {
    let gpu = Gpu::new();
    let (mut ran, mut gaps) = (0, 0);
    each_type(|mut problem| {
        for activation in ACTIVATIONS {
            let biases = bias_types(problem.d.dtype).iter().copied().map(Some);
            for bias in biases.chain([None]) {
                problem.epilogue = Epilogue { activation, bias };
                if check(&gpu, &Case::new(problem), 20) { ran += 1 } else { gaps += 1 }
            }
        }
    });
    println!("{ran} ran, {gaps} known gaps");
    assert!(ran > 40);
}
