//! A GEMM of codes on tensor cores.

use burn::tensor::ops::FloatTensor;

use super::backend::Fp8Engine;
use super::blocks::BlockCodes;
use super::launch::{Otherwise, refusal};
use super::matrix::{GemmOperand, GemmOptions};
use super::problem::NativeProblem;

/// Multiplies `lhs` `[M, K]` by `rhs` `[N, K]` transposed, on tensor cores. Panics, on this thread, where it must run there and cannot:
/// Fusion runs products on a thread of its own, whose panics nobody sees.
pub(crate) fn native_gemm<B: Fp8Engine>(
    lhs: GemmOperand<B>,
    rhs: GemmOperand<B>,
    options: GemmOptions,
) -> FloatTensor<B> {
    let device = B::int_device(&lhs.words);
    check::<B>(&device, &options, || NativeProblem::of_gemm([&lhs, &rhs], &options));
    B::fp8_gemm(lhs, rhs, options)
}

/// The same of codes with scales of blocks.
pub(crate) fn native_gemm_of_blocks<B: Fp8Engine>(
    lhs: BlockCodes<B>,
    rhs: BlockCodes<B>,
    options: GemmOptions,
) -> FloatTensor<B> {
    let device = lhs.codes.device();
    check::<B>(&device, &options, || NativeProblem::of_blocks([&lhs, &rhs], &options));
    B::fp8_gemm_of_blocks(lhs, rhs, options)
}

fn check<B: Fp8Engine>(
    device: &B::Device,
    options: &GemmOptions,
    problem: impl FnOnce() -> NativeProblem,
) {
    if options.otherwise == Otherwise::Refuse
        && let Err(fallback) = B::fp8_check_native(device, &problem())
    {
        panic!("{}", refusal(&fallback));
    }
}
