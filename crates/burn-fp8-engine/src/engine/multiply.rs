//! Products as the rooms above ask for them.

use std::borrow::Cow;

use burn_backend::{TensorMetadata, tensor::FloatTensor};

use super::backend::Fp8Engine;
use super::capability::Capability;
use super::launch::{Otherwise, refusal};
use super::problem::Problem;
use super::product::{Epilogue, EpilogueOf, Operand, OperandOf, ProductOf, Run, Target};

/// Multiplies `lhs` `[…, M, K]` by `rhs` `[…, K, N]`, of one rank, whose leading dimensions broadcast.
///
/// Panics, on this thread, where tensor cores must run it and cannot: Fusion runs products on a thread of its own, whose panics nobody sees.
pub fn multiply<B: Fp8Engine>(
    lhs: OperandOf<B>,
    rhs: OperandOf<B>,
    epilogue: EpilogueOf<B>,
    run: Run,
) -> ProductOf<B> {
    if let Err(reason) = check::<B>([&lhs, &rhs], &epilogue, &run) {
        panic!("{}", refusal(&reason));
    }
    B::fp8_multiply(lhs, rhs, epilogue, run)
}

/// Whether tensor cores have an algorithm for a product that nothing else may run, else why not.
pub fn check<B: Fp8Engine>(
    operands: [&OperandOf<B>; 2],
    epilogue: &EpilogueOf<B>,
    run: &Run,
) -> Result<(), Cow<'static, str>> {
    match (operands, &run.target, run.otherwise) {
        ([Operand::Matrix(lhs), Operand::Matrix(rhs)], Target::TensorCores, Otherwise::Refuse) => {
            let problem = Problem::new::<B>([lhs, rhs], epilogue, run.fast_accumulation);
            match B::fp8_capability(&lhs.device::<B>(), Some(&problem)) {
                Capability::FakeQuantized { reason } => Err(reason),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// A product in high precision, as the backend multiplies by itself.
pub fn multiply_high<B: Fp8Engine>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let epilogue = Epilogue::float(lhs.dtype().into());
    let [lhs, rhs] = [lhs, rhs].map(Operand::Float);
    B::fp8_multiply(lhs, rhs, epilogue, Run::emulated()).result.into_float()
}
