//! A GEMM of codes: on tensor cores, or decoded where they have no algorithm for it.

use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;

use crate::engine::backend::{Fp8Engine, no_tensor_cores};
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
    match super::cuda::gemm::<B, R>(&lhs, &rhs, &options) {
        Some(Ok((output, launch))) => {
            note(&options.note, || Launched::Native { algorithm: super::cuda::describe(&launch) });
            return output;
        }
        Some(Err(fallback)) => {
            fall_back(fallback, options.otherwise, &options.note);
            return decoded::<B, R>(lhs, rhs, &options);
        }
        None => {}
    }
    if cfg!(test) {
        // Tests without tensor cores run the rest of the native path.
        match super::capability::pretended_algorithm(options.k) {
            Ok(algorithm) => note(&options.note, || Launched::Native { algorithm }),
            Err(fallback) => fall_back(fallback, options.otherwise, &options.note),
        }
        return decoded::<B, R>(lhs, rhs, &options);
    }
    no_tensor_cores::<B>(&B::int_device(&lhs.words))
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
    let output = B::fp8_rescale(output, &lhs.scale, &rhs.scale);
    match options.dtype {
        DType::F32 => output,
        dtype => B::float_cast(output, dtype.into()),
    }
}
