//! Bias and activations.

use burn_fp8_core::Fp8Format::E4M3;
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
            let biases = bias_types(problem.d.dtype)
                .iter()
                .map(|dtype| Some(Bias { dtype: *dtype, batch_stride: 0 }));
            for bias in biases.chain([None]) {
                problem.epilogue = Epilogue { activation, bias };
                if check(&gpu, &Case::new(problem), 20) { ran += 1 } else { gaps += 1 }
            }
        }
    });
    println!("{ran} ran, {gaps} known gaps");
    assert!(ran > 40);
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn a_bias_for_each_matrix_of_a_batch_is_right() {
    let gpu = Gpu::new();
    for activation in ACTIVATIONS {
        for batch_stride in [0, 80, 96] {
            let mut problem = ScaledMatmul::new(48, 80, 96, E4M3, E4M3, DataType::Bf16).batched(3);
            let bias = Some(Bias { dtype: DataType::Bf16, batch_stride });
            problem.epilogue = Epilogue { activation, bias };
            assert!(check(&gpu, &Case::new(problem), 21));
        }
    }
}
