//! [`scaled_matmul`](crate::scaled_matmul) as one call of cuBLASLt.

use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::{Layouts, Overflow, PADDING};

use super::buffer::{device_of, on_device, words};
use super::launch::{Call, describe, launch};
use super::problem::plan_of;
use crate::engine::backend::Fp8Engine;
use crate::engine::codes::CodesPrimitive;
use crate::engine::launch::{Launched, fall_back, note};
use crate::engine::matrix::QuantizeMatrix;
use crate::engine::portable::epilogue::reciprocal;
use crate::engine::problem::NativeProblem;
use crate::engine::quantize::ScaleRule;
use crate::engine::scalar::Scalar;
use crate::engine::scaled::{
    OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues,
};

/// The product. `None` where there are no tensor cores, or no algorithm on them: then the reason has been noted.
///
/// K and N are padded to multiples of 16 where they are none: codes are decoded and quantized again, one pass each. A trace tells.
pub(in crate::engine::cube) fn scaled_matmul<B, R: CubeRuntime>(
    a: &ScaledOperand<B>,
    b_t: &ScaledOperand<B>,
    request: &ScaledRequest<B>,
) -> Option<ScaledProduct<B>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let like = tensor_of(&a.codes).clone();
    let device = device_of(&like)?;
    let (client, _) = device;
    let ([m, k], [n, _]) = (dims(&a.codes), dims(&b_t.codes));
    let padded_n = n.next_multiple_of(PADDING);
    let problem = plan_of(&NativeProblem::of_scaled([a, b_t], request));
    let size = match &request.output {
        OutputType::Float(dtype) => DType::from(*dtype).size(),
        OutputType::Fp8 { .. } => 1,
    };
    let bias = request.bias.clone().map(|bias| repeat_last::<B, R>(bias, PADDING));
    let d = client.empty(m * padded_n * size);
    let amax = request.amax.then(|| client.create_from_slice(&0f32.to_ne_bytes()));
    let call = Call {
        inverse_scale_d: match &request.output {
            OutputType::Fp8 { scale, .. } => {
                Some(on_device(client, &reciprocal::<B>(scale.clone())))
            }
            OutputType::Float(_) => None,
        },
        amax_d: amax.clone(),
        bias: bias.map(|bias| words(&bias)),
        ..Call::new(rows::<B, R>(a, 1), rows::<B, R>(b_t, PADDING), d.clone())
    }
    .scaled::<B, R>(client, [&a.scale, &b_t.scale]);
    match launch(device, problem, call) {
        Ok(launch) => note(&request.note, || {
            let mut algorithm = describe(&launch);
            if [n, k].iter().any(|size| !size.is_multiple_of(PADDING)) {
                algorithm += "; N and K padded to multiples of 16, by passes of their own";
            }
            Launched::Native { algorithm }
        }),
        Err(fallback) => {
            fall_back(fallback, request.otherwise, &request.note);
            return None;
        }
    }

    let tensor = |dtype, shape, strides| {
        let meta = Metadata::new(shape, strides);
        CubeTensor::new(like.client.clone(), d, meta, like.device.clone(), dtype)
    };
    let values = match &request.output {
        OutputType::Float(dtype) => {
            let (shape, strides) = (Shape::new([m, n]), strides![padded_n, 1]);
            ScaledValues::Float(tensor(DType::from(*dtype), shape, strides))
        }
        OutputType::Fp8 { format, .. } => {
            let len = m * padded_n / 4;
            let words = tensor(DType::I32, Shape::new([len]), strides![1]);
            let codes = CodesPrimitive::Packed(words, Shape::new([m, padded_n]), *format);
            ScaledValues::Codes(without_padding::<B, R>(codes, [m, n], padded_n, *format))
        }
    };
    let amax = amax.map(|amax| crate::engine::cube::tensor::number(&like, amax));
    Some(ScaledProduct { values, amax })
}

/// The codes of an operand `[rows, K]`, row by row: K padded, and at least as many rows as the next multiple of `multiple`.
fn rows<B, R: CubeRuntime>(operand: &ScaledOperand<B>, multiple: usize) -> Handle
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let [rows, k] = dims(&operand.codes);
    match &operand.codes {
        CodesPrimitive::Bytes(codes, _) | CodesPrimitive::Packed(codes, ..)
            if rows.is_multiple_of(multiple) && k.is_multiple_of(PADDING) =>
        {
            words(codes)
        }
        codes => {
            // Codes are values that quantize to themselves.
            let values = repeat_last::<B, R>(B::fp8_values(codes.clone()), multiple);
            let request = QuantizeMatrix {
                format: operand.format,
                scale: ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite),
                layouts: Layouts::Rows,
            };
            words(&B::fp8_quantize_matrix(values, request).rows.expect("the rows were asked for"))
        }
    }
}

/// Codes `[m, padded]` without the padding of their rows.
fn without_padding<B, R: CubeRuntime>(
    codes: CodesPrimitive<B>,
    [m, n]: [usize; 2],
    padded: usize,
    format: burn_fp8_core::Fp8Format,
) -> CodesPrimitive<B>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    if n == padded {
        return codes;
    }
    let values = B::float_slice(B::fp8_values(codes), &[Slice::from(0..m), Slice::from(0..n)]);
    let scale = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
    B::fp8_quantize_codes(values, format, scale).0
}

/// The tensor with its last row, or element, repeated until there are a multiple of `multiple`.
///
/// Columns that pad the output then repeat its last one. Zeros would not do: times infinity they are NaN, which the amax of the output
/// takes part in.
fn repeat_last<B, R: CubeRuntime>(tensor: CubeTensor<R>, multiple: usize) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    let mut shape = tensor.shape();
    let rows = shape[0];
    let missing = rows.next_multiple_of(multiple) - rows;
    if missing == 0 {
        return tensor;
    }
    shape[0] = missing;
    let last = B::float_slice(tensor.clone(), &[Slice::from(rows - 1..rows)]);
    B::float_cat(vec![tensor, B::float_expand(last, shape)], 0)
}

fn tensor_of<B, R: CubeRuntime>(codes: &CodesPrimitive<B>) -> &CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    match codes {
        CodesPrimitive::Bytes(tensor, _)
        | CodesPrimitive::Packed(tensor, ..)
        | CodesPrimitive::Values(tensor) => tensor,
    }
}

fn dims<B, R: CubeRuntime>(codes: &CodesPrimitive<B>) -> [usize; 2]
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    match codes {
        CodesPrimitive::Packed(_, shape, _) => shape.dims(),
        codes => tensor_of(codes).shape().dims(),
    }
}
