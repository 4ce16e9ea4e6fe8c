//! A GEMM of codes: on tensor cores, or decoded where they have no algorithm for it.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;

use crate::engine::backend::{Fp8Engine, no_tensor_cores};
use crate::engine::blocks::BlockCodes;
#[cfg(feature = "cuda")]
use crate::engine::capability::Fallback;
use crate::engine::codes::CodesPrimitive;
use crate::engine::launch::{Launched, fall_back, note};
use crate::engine::matrix::{GemmOperand, GemmOptions};

/// `lhs` `[M, K]` times `rhs` `[N, K]` transposed.
pub(super) fn gemm<B, R: CubeRuntime>(
    lhs: GemmOperand<B>,
    rhs: GemmOperand<B>,
    options: GemmOptions,
) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    #[cfg(feature = "cuda")]
    if let Some(launched) = super::cuda::gemm::<B, R>(&lhs, &rhs, &options) {
        let output = noted(launched, &options);
        return output.unwrap_or_else(|| decoded::<B, R>(lhs, rhs, &options));
    }
    match is_pretended(&options) {
        true => decoded::<B, R>(lhs, rhs, &options),
        false => no_tensor_cores::<B>(&B::int_device(&lhs.words)),
    }
}

/// The same of codes with scales of blocks.
pub(super) fn gemm_of_blocks<B, R: CubeRuntime>(
    lhs: BlockCodes<B>,
    rhs: BlockCodes<B>,
    options: GemmOptions,
) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    #[cfg(feature = "cuda")]
    if let Some(launched) = super::cuda::gemm_of_blocks::<B, R>([&lhs, &rhs], &options) {
        let output = noted(launched, &options);
        return output.unwrap_or_else(|| decoded_blocks::<B, R>(lhs, rhs, &options));
    }
    match is_pretended(&options) {
        true => decoded_blocks::<B, R>(lhs, rhs, &options),
        false => no_tensor_cores::<B>(&lhs.codes.device()),
    }
}

/// Notes what ran a product, or why nothing did.
#[cfg(feature = "cuda")]
fn noted<R: CubeRuntime>(
    launched: Result<(CubeTensor<R>, burn_fp8_cublaslt::Launch), Fallback>,
    options: &GemmOptions,
) -> Option<CubeTensor<R>> {
    match launched {
        Ok((output, launch)) => {
            note(&options.note, || Launched::Native { algorithm: super::cuda::describe(&launch) });
            Some(output)
        }
        Err(fallback) => {
            fall_back(fallback, options.otherwise, &options.note);
            None
        }
    }
}

/// Whether a test without tensor cores runs the rest of the native path, which is noted then.
fn is_pretended(options: &GemmOptions) -> bool {
    if cfg!(test) {
        match super::capability::pretended_algorithm(options.k) {
            Ok(algorithm) => note(&options.note, || Launched::Native { algorithm }),
            Err(fallback) => fall_back(fallback, options.otherwise, &options.note),
        }
    }
    cfg!(test)
}

/// The product of the decoded codes in f32, times both scales.
fn decoded<B, R: CubeRuntime>(
    lhs: GemmOperand<B>,
    rhs: GemmOperand<B>,
    options: &GemmOptions,
) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let values = |operand: &GemmOperand<B>| {
        let [rows, words] = operand.words.shape().dims();
        let flat = B::int_reshape(operand.words.clone(), Shape::new([rows * words]));
        B::fp8_values(CodesPrimitive::Packed(flat, Shape::new([rows, 4 * words]), operand.format))
    };
    let output = B::fp8_matmul_values(values(&lhs), B::float_transpose(values(&rhs)));
    let output = B::float_slice(output, &[Slice::from(0..lhs.rows), Slice::from(0..rhs.rows)]);
    rounded::<B>(B::fp8_rescale(output, &lhs.scale, &rhs.scale), options.dtype)
}

/// The product of the decoded codes times the scales of their blocks, in f32.
fn decoded_blocks<B, R: CubeRuntime>(
    lhs: BlockCodes<B>,
    rhs: BlockCodes<B>,
    options: &GemmOptions,
) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let [lhs, rhs] = [lhs, rhs].map(B::fp8_dequantize_blocks);
    rounded::<B>(B::fp8_matmul_values(lhs, B::float_transpose(rhs)), options.dtype)
}

fn rounded<B: Fp8Engine>(output: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match dtype {
        DType::F32 => output,
        dtype => B::float_cast(output, dtype.into()),
    }
}
