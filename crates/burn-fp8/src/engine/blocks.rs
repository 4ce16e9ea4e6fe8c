//! Tensors with a scale for each block of their last two dimensions.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Fp8Format, Recipe};

use super::codes::CodesPrimitive;

/// What to quantize a tensor `[…, R, C]` to, with a scale for each block.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeBlocks {
    /// The rows and the columns of a block. Blocks at the end of a dimension are cut off by it.
    pub block: [usize; 2],
    /// The format of the codes.
    pub format: Fp8Format,
    /// How a scale follows from an amax.
    pub recipe: Recipe,
}

/// Codes `[…, R, C]`, and the scales of their blocks.
#[derive(Clone, Debug)]
pub struct BlockCodes<B: Backend> {
    /// The codes.
    pub codes: CodesPrimitive<B>,
    /// The scales, f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]`.
    pub scales: FloatTensor<B>,
    /// The rows and the columns of a block.
    pub block: [usize; 2],
    /// The format of the codes.
    pub format: Fp8Format,
}
