//! A GEMM of codes as one call of cuBLASLt.

use burn::tensor::Shape;
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::PADDING;
use burn_fp8_cublaslt::Launch;

use super::buffer::{device_of, words};
use super::launch::{Call, launch};
use super::problem::plan_of;
use crate::engine::backend::Fp8Engine;
use crate::engine::capability::Fallback;
use crate::engine::matrix::{GemmOperand, GemmOptions};
use crate::engine::problem::NativeProblem;

/// The product `[M, K] · [N, K]ᵀ`, and what runs it. `None` where there are no tensor cores.
///
/// Rows of the output are as long as N padded; the tensor returned leaves the padding out.
///
/// # Errors
/// As [`launch`].
pub(in crate::engine::cube) fn gemm<B, R: CubeRuntime>(
    lhs: &GemmOperand<B>,
    rhs: &GemmOperand<B>,
    options: &GemmOptions,
) -> Option<Result<(CubeTensor<R>, Launch), Fallback>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let device = device_of(&lhs.words)?;
    let (client, _) = device;
    let (m, n) = (lhs.rows, rhs.rows);
    let padded = n.next_multiple_of(PADDING);
    let problem = plan_of(&NativeProblem::of_gemm([lhs, rhs], options));
    let output = client.empty(m * padded * options.dtype.size());
    let call = Call::new(words(&lhs.words), words(&rhs.words), output.clone())
        .scaled::<B, R>(client, [&lhs.scale, &rhs.scale]);
    Some(launch(device, problem, call).map(|launch| {
        let shape = Shape::new([m, n]);
        let tensor = CubeTensor::new(
            lhs.words.client.clone(),
            output,
            Metadata::new(shape, strides![padded, 1]),
            lhs.words.device.clone(),
            options.dtype,
        );
        (tensor, launch)
    }))
}
