//! A GEMM of codes with scales of blocks as one call of cuBLASLt.

use burn::tensor::{FloatDType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::Overflow;
use burn_fp8_cublaslt::{BlockScale, Launch, Scales};

use super::buffer::{device_of, words};
use super::launch::{Call, launch};
use super::problem::{block_scale, plan_of};
use crate::engine::backend::Fp8Engine;
use crate::engine::blocks::BlockCodes;
use crate::engine::capability::Fallback;
use crate::engine::codes::CodesPrimitive;
use crate::engine::cube::tensor::run;
use crate::engine::matrix::GemmOptions;
use crate::engine::problem::NativeProblem;
use crate::engine::quantize::ScaleRule;
use crate::engine::scalar::Scalar;

/// The product `[M, K] · [N, K]ᵀ`, and what runs it. `None` where there are no tensor cores.
///
/// Operands are padded with zeros where cuBLASLt wants it, by passes of their own: K and N to multiples of 16, and M to one of 4 for blocks of 128.
///
/// # Errors
/// As [`launch`].
pub(in crate::engine::cube) fn gemm<B, R: CubeRuntime>(
    [lhs, rhs]: [&BlockCodes<B>; 2],
    options: &GemmOptions,
) -> Option<Result<(CubeTensor<R>, Launch), Fallback>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let like = lhs.scales.clone();
    let device = device_of(&like)?;
    let (client, _) = device;
    let problem = NativeProblem::of_blocks([lhs, rhs], options);
    let plan = plan_of(&problem);
    let [m, n, _] = problem.shape;
    let [padded_m, padded_n, padded_k] =
        [plan.shape.m, plan.shape.n, plan.shape.k].map(|size| size as usize);
    let output = client.empty(padded_m * padded_n * options.dtype.size());
    let codes = |operand, rows| words(&padded::<B, R>(operand, [rows, padded_k]));
    let [scale_a, scale_b] = match plan.scales {
        Scales::Blocks { .. } => [(lhs, padded_m), (rhs, padded_n)]
            .map(|(operand, rows)| Some(arranged::<B, R>(operand, rows))),
        // One for each row: a vector.
        _ => [(lhs, padded_m), (rhs, padded_n)].map(|(operand, rows)| {
            Some(words(&filled_up::<B, R>(operand.scales.clone(), [rows, 1])))
        }),
    };
    let call = Call {
        scale_a,
        scale_b,
        ..Call::new(codes(lhs, padded_m), codes(rhs, padded_n), output.clone())
    };
    Some(launch(device, plan, call).map(|launch| {
        let tensor = CubeTensor::new(
            like.client.clone(),
            output,
            Metadata::new(Shape::new([m, n]), strides![padded_n, 1]),
            like.device.clone(),
            options.dtype,
        );
        (tensor, launch)
    }))
}

/// Codes `[rows, columns]`, with those of zero behind the rows and columns that there are.
fn padded<B, R: CubeRuntime>(operand: &BlockCodes<B>, shape: [usize; 2]) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let (codes, format) = (operand.codes.clone(), operand.format);
    let codes = match (codes.shape().dims() == shape, codes) {
        (true, codes @ (CodesPrimitive::Bytes(..) | CodesPrimitive::Packed(..))) => codes,
        (_, codes) => {
            // Codes are values that quantize to themselves.
            let values = filled_up::<B, R>(B::fp8_values(codes), shape);
            let rule = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
            B::fp8_quantize_codes(values, format, rule).0
        }
    };
    let (CodesPrimitive::Bytes(codes, _) | CodesPrimitive::Packed(codes, ..)) = codes else {
        unreachable!("kernels write packed codes");
    };
    codes
}

/// The scales of the blocks of an operand, of so many rows once it is padded, as [`BlockScale`] has them.
fn arranged<B, R: CubeRuntime>(operand: &BlockCodes<B>, rows: usize) -> Handle
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let scales = operand.scales.clone();
    let [_, blocks] = scales.shape().dims();
    match block_scale(operand.block) {
        BlockScale::Row32 => {
            let client = scales.client.clone();
            run(scales, |scales| burn_fp8_kernels::tile_e8m0(&client, scales))
        }
        BlockScale::Row128 => words(&B::float_transpose(filled_up::<B, R>(scales, [rows, blocks]))),
        BlockScale::Square128 => {
            let shape = [rows.div_ceil(128), blocks.next_multiple_of(4)];
            words(&filled_up::<B, R>(scales, shape))
        }
    }
}

/// An f32 matrix with zeros behind the rows and columns that there are.
fn filled_up<B, R: CubeRuntime>(matrix: CubeTensor<R>, shape: [usize; 2]) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    let [rows, columns] = matrix.shape().dims();
    if [rows, columns] == shape {
        return matrix;
    }
    let zeros = B::float_zeros(Shape::new(shape), &B::float_device(&matrix), FloatDType::F32);
    B::float_slice_assign(zeros, &[Slice::from(0..rows), Slice::from(0..columns)], matrix)
}
