//! Products of codes on the matrix unit of a CPU, which multiplies bf16 and sums in f32: the numerics of emulation, faster than f32.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::codes::CodesPrimitive;
use super::launch::{LaunchNote, Otherwise};
use super::scalar::Scalar;

/// A quantized tensor without the values of its codes.
#[derive(Clone, Debug)]
pub struct QuantizedCodes<B: Backend> {
    /// The codes, of the shape of the tensor.
    pub codes: CodesPrimitive<B>,
    /// The scale: `x ≈ code × scale`.
    pub scale: Scalar<B>,
    /// The largest finite magnitude of the tensor, 0 if there are none; not where the scale was given.
    pub amax: Option<Scalar<B>>,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// An operand: codes `[…, M, K]` on the left or `[…, K, N]` on the right, in any layout that the backend has.
#[derive(Clone, Debug)]
pub struct UnitOperand<B: Backend> {
    /// The codes.
    pub codes: CodesPrimitive<B>,
    /// Their scale, or scales.
    pub scale: UnitScale<B>,
}

/// The scale of an operand.
#[derive(Clone, Debug)]
pub enum UnitScale<B: Backend> {
    /// One for all elements.
    Tensor(Scalar<B>),
    /// One for all elements that are summed, f32: `[…, M, 1]` on the left, `[…, 1, N]` on the right. Both operands have them, or neither.
    Rows(FloatTensor<B>),
    /// One for each block of a matrix, `[⌈rows / block[0]⌉, ⌈columns / block[1]⌉]`: the rows and columns of the operand. Both operands have them, or neither.
    /// Blocks have a multiple of 32 elements along the dimension that is summed, and as many in both operands unless all scales are powers of two.
    Blocks {
        /// The scales, f32.
        scales: FloatTensor<B>,
        /// Rows and columns of a block.
        block: [usize; 2],
        /// Whether all scales are.
        are_powers_of_two: bool,
    },
}

/// How a product is run.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// The type of the result: F32, BF16 or F16.
    pub dtype: DType,
    /// What becomes of it where the scales of blocks are further apart than the unit can take.
    pub otherwise: Otherwise,
    /// Where it leaves what ran it, if anybody wants to know.
    pub note: Option<LaunchNote>,
}

/// Chooses the unit, unless it has been chosen: for a product that is about to run. Linux, which has to permit AMX, is not asked before.
pub(crate) fn choose_unit() {
    #[cfg(feature = "flex")]
    let _ = burn_fp8_cpu::Unit::current();
}
