//! What the kernels of blocks are launched for.

use burn_fp8_core::{Fp8Format, Recipe};
use cubecl::ir::AddressType;

use super::grid::Blocks;
use super::rule::Rule;
use crate::bits::Encoding;
use crate::tensor::Input;

/// A tensor to be quantized, and how.
pub(super) struct Request<'a> {
    pub(super) input: &'a Input<'a>,
    /// As it was asked for; `blocks` has it no larger than the matrix.
    pub(super) block: [usize; 2],
    pub(super) blocks: Blocks,
    pub(super) format: Fp8Format,
    pub(super) recipe: Recipe,
    pub(super) encoding: Encoding,
    pub(super) rule: Rule,
    pub(super) address: AddressType,
}
