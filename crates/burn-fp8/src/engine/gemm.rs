//! A GEMM of codes on tensor cores.

use burn::tensor::ops::FloatTensor;

use super::backend::Fp8Engine;
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
    if options.otherwise == Otherwise::Refuse {
        let problem = NativeProblem::of_gemm([&lhs, &rhs], &options);
        if let Err(fallback) = B::fp8_check_native(&B::int_device(&lhs.words), &problem) {
            panic!("{}", refusal(&fallback));
        }
    }
    B::fp8_gemm(lhs, rhs, options)
}
