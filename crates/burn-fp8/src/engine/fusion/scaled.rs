//! [`scaled_matmul`](crate::scaled_matmul) as one node of a stream.

use burn::tensor::{DType, FloatDType, Shape};
use burn_fp8_core::Fp8Format;
use burn_fusion::{Fusion, FusionBackend};

use super::codes::Form;
use super::op::{one, register};
use super::rule::Number;
use crate::engine::backend::Fp8Engine;
use crate::engine::codes::CodesPrimitive;
use crate::engine::scaled::{
    OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues,
};

/// An [`OutputType`] without the tensor of its scale.
#[derive(Clone, Copy, Debug)]
enum Output {
    Float(FloatDType),
    Fp8(Fp8Format, Number),
}

pub(super) fn scaled_matmul<B: FusionBackend + Fp8Engine>(
    a: ScaledOperand<Fusion<B>>,
    b_t: ScaledOperand<Fusion<B>>,
    request: ScaledRequest<Fusion<B>>,
) -> ScaledProduct<Fusion<B>> {
    let [m, n] = [&a, &b_t].map(|operand| operand.codes.shape()[0]);
    let mut inputs = vec![];
    let operands = [a, b_t].map(|ScaledOperand { codes, format, scale }| {
        let (form, codes) = Form::split::<B>(codes);
        let (scale, tensor) = Number::split(&scale);
        inputs.push(codes);
        inputs.extend(tensor);
        (form, format, scale)
    });
    let ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note } =
        request;
    let otherwise = otherwise.in_stream();
    let has_bias = bias.is_some();
    inputs.extend(bias);
    let shape = Shape::new([m, n]);
    let (output, result) = match output {
        OutputType::Float(dtype) => (Output::Float(dtype), (shape.clone(), dtype.into())),
        OutputType::Fp8 { format, scale } => {
            let (scale, tensor) = Number::split(&scale);
            inputs.extend(tensor);
            let words = Shape::new([(m * n).div_ceil(4)]);
            (Output::Fp8(format, scale), (words, DType::I32))
        }
    };
    let mut outputs = vec![result];
    if amax {
        outputs.push(one());
    }

    let outputs = register("fp8_scaled_matmul", inputs, outputs, move |ir, handles| {
        let mut inputs = ir.inputs.iter();
        let mut next = || inputs.next().expect("as many as were registered");
        let [a, b_t] = operands.clone().map(|(form, format, scale)| {
            let codes = form.join::<B>(next(), handles);
            let scale = scale.join::<B>(|| handles.get_float_tensor::<B>(next()));
            ScaledOperand { codes, format, scale }
        });
        let bias = has_bias.then(|| handles.get_float_tensor::<B>(next()));
        let output = match output {
            Output::Float(dtype) => OutputType::Float(dtype),
            Output::Fp8(format, scale) => {
                let scale = scale.join::<B>(|| handles.get_float_tensor::<B>(next()));
                OutputType::Fp8 { format, scale }
            }
        };
        let note = note.clone();
        let request =
            ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note };
        let ScaledProduct { values, amax } = B::fp8_scaled_matmul(a, b_t, request);
        let mut outputs = ir.outputs.iter().map(|ir| ir.id);
        let mut next = || outputs.next().expect("as many as were registered");
        match values {
            ScaledValues::Float(values) => handles.register_float_tensor::<B>(&next(), values),
            ScaledValues::Codes(CodesPrimitive::Packed(words, ..)) => {
                handles.register_int_tensor::<B>(&next(), words);
            }
            ScaledValues::Codes(_) => unreachable!("kernels write packed codes"),
        }
        if let Some(amax) = amax {
            handles.register_float_tensor::<B>(&next(), amax);
        }
    });
    let mut outputs = outputs.into_iter();
    let result = outputs.next().expect("the result");
    let values = match output {
        Output::Float(_) => ScaledValues::Float(result),
        Output::Fp8(format, _) => {
            ScaledValues::Codes(CodesPrimitive::Packed(result, shape, format))
        }
    };
    ScaledProduct { values, amax: outputs.next() }
}
