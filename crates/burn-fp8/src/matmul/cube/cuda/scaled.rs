//! [`scaled_matmul`](crate::scaled_matmul) as one call of cuBLASLt.

use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::{Layouts, Overflow, PADDING};
use burn_fp8_cublaslt as lt;

use super::{Call, data_type, describe, device_of, fallback, launch, on_device, words};
use crate::Scalar;
use crate::matmul::matrix::note;
use crate::matmul::scaled::reciprocal;
use crate::matmul::{
    Codes, Fp8Matmul, OutputType, QuantizeMatrix, ScaleRule, ScaledOperand, ScaledProduct,
    ScaledRequest, ScaledValues,
};
use crate::report::Ran;
use crate::scaled::Activation;

/// The product. `None` where there are no tensor cores, or no algorithm on them: then the reason has been noted.
///
/// K and N are padded to multiples of 16 where they are none, which costs a pass over the codes.
pub(in crate::matmul::cube) fn scaled_matmul<B, R: CubeRuntime>(
    a: &ScaledOperand<B>,
    b_t: &ScaledOperand<B>,
    request: &ScaledRequest<B>,
) -> Option<ScaledProduct<B>>
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let like = tensor_of(&a.codes).clone();
    let device = device_of(&like)?;
    let (client, _) = device;
    let ([m, k], [n, _]) = (dims(&a.codes), dims(&b_t.codes));
    let [padded_n, padded_k] = [n, k].map(|size| size.next_multiple_of(PADDING));

    let (dtype, size) = match &request.output {
        OutputType::Float(dtype) => (data_type(DType::from(*dtype)), DType::from(*dtype).size()),
        OutputType::Fp8 { format, .. } => (lt::DataType::Fp8(*format), 1),
    };
    let bias = request.bias.clone().map(|bias| pad::<B, R>(bias, padded_n));
    let problem = lt::ScaledMatmul {
        scaled_d: dtype.is_fp8(),
        amax_d: request.amax,
        accumulation: match request.fast_accumulation {
            true => lt::Accumulation::Fast,
            false => lt::Accumulation::Precise,
        },
        epilogue: lt::Epilogue {
            activation: match request.activation {
                Activation::None => lt::Activation::None,
                Activation::Relu => lt::Activation::Relu,
                Activation::Gelu => lt::Activation::Gelu,
            },
            bias: bias
                .as_ref()
                .map(|bias| lt::Bias { dtype: data_type(bias.dtype), batch_stride: 0 }),
            aux: None,
        },
        ..lt::ScaledMatmul::new(
            m as u64,
            padded_n as u64,
            padded_k as u64,
            a.format,
            b_t.format,
            dtype,
        )
    };
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
        Ok(launch) => note(&request.note, || Ran::Native { algorithm: describe(&launch) }),
        Err(error) => {
            let fallback = fallback(&error, request.otherwise);
            note(&request.note, || Ran::Fallback(fallback));
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
            let codes = Codes::Packed(words, Shape::new([m, padded_n]), *format);
            ScaledValues::Codes(without_padding::<B, R>(codes, [m, n], padded_n, *format))
        }
    };
    let amax = amax.map(|amax| crate::matmul::cube::tensor::number(&like, amax));
    Some(ScaledProduct { values, amax })
}

/// The codes of an operand `[rows, K]`, row by row: K padded, and at least as many rows as the next multiple of `multiple`.
fn rows<B, R: CubeRuntime>(operand: &ScaledOperand<B>, multiple: usize) -> Handle
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let [rows, k] = dims(&operand.codes);
    match &operand.codes {
        Codes::Bytes(codes, _) | Codes::Packed(codes, ..)
            if rows.is_multiple_of(multiple) && k.is_multiple_of(PADDING) =>
        {
            words(codes)
        }
        codes => {
            // Codes are values that quantize to themselves.
            let values = B::fp8_values(codes.clone());
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
    codes: Codes<B>,
    [m, n]: [usize; 2],
    padded: usize,
    format: burn_fp8_core::Fp8Format,
) -> Codes<B>
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    if n == padded {
        return codes;
    }
    let values = B::float_slice(B::fp8_values(codes), &[Slice::from(0..m), Slice::from(0..n)]);
    let scale = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
    B::fp8_quantize_codes(values, format, scale).0
}

/// A bias with zeros for the columns that pad the output.
fn pad<B, R: CubeRuntime>(bias: CubeTensor<R>, len: usize) -> CubeTensor<R>
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>>,
{
    let [n] = bias.shape().dims();
    if n == len {
        return bias;
    }
    let zeros = B::float_zeros(Shape::new([len - n]), &B::float_device(&bias), bias.dtype.into());
    B::float_cat(vec![bias, zeros], 0)
}

fn tensor_of<B, R: CubeRuntime>(codes: &Codes<B>) -> &CubeTensor<R>
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    match codes {
        Codes::Bytes(tensor, _) | Codes::Packed(tensor, ..) | Codes::Values(tensor) => tensor,
    }
}

fn dims<B, R: CubeRuntime>(codes: &Codes<B>) -> [usize; 2]
where
    B: Fp8Matmul<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    match codes {
        Codes::Packed(_, shape, _) => shape.dims(),
        codes => tensor_of(codes).shape().dims(),
    }
}
