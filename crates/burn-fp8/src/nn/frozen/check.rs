//! What a weight and a bias can be.

use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8_core::Fp8Format;

use crate::engine::tensor::constant;

/// Whether a weight can be of this shape, else why not.
pub(super) fn check_shape([d_input, d_output]: [usize; 2]) -> Result<(), String> {
    match d_input > 0 && d_output > 0 {
        true => Ok(()),
        false => Err(format!("the weight [{d_input}, {d_output}] has no elements")),
    }
}

/// Whether weight and bias have a finite element each, else which one has not.
pub(super) fn check_finite(
    [d_input, d_output]: [usize; 2],
    codes: &[u8],
    bias: Option<&[f32]>,
) -> Result<(), String> {
    const REMEDY: &str = "all are NaN or infinite; the model that it comes from has diverged, or its file is damaged";
    if codes.iter().all(|code| Fp8Format::E4M3.decode(*code).is_nan()) {
        return Err(format!(
            "no element of the weight [{d_input}, {d_output}] is finite: {REMEDY}"
        ));
    }
    if bias.is_some_and(|bias| !bias.is_empty() && !bias.iter().any(|b| b.is_finite())) {
        return Err(format!("no element of the bias [{d_output}] is finite: {REMEDY}"));
    }
    Ok(())
}

/// The bias on the host. Waits for the device.
pub(super) fn read_bias<B: Backend>(bias: &Option<Tensor<B, 1>>) -> Option<Vec<f32>> {
    let bias = constant(bias.clone()?).cast(FloatDType::F32);
    Some(bias.into_data().to_vec().expect("it is f32"))
}
