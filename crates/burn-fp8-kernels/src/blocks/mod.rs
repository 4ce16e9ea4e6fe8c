//! Tensors with a scale for each block of their last two dimensions.

mod dequantize;
mod general;
mod grid;
mod request;
mod rows;
mod rule;
mod tile_kernel;
mod tiles;

use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{Division, Encoding};
use crate::error::KernelError;
use crate::launch::{Words, address_type};
use crate::tensor::Input;
pub use dequantize::{BlockCodes, dequantize_blocks};
use grid::Blocks;
use request::Request;
use rule::Rule;
use tiles::Tiles;

/// A tensor `[…, R, C]` in FP8, with a scale for each block.
#[derive(Clone, Debug)]
pub struct QuantizedBlocks {
    /// The codes in row-major order, one byte each; in whole u32 words, whose last bytes are zero where there are no codes.
    pub codes: Handle,
    /// The scales `[…, ⌈R / rows⌉, ⌈C / columns⌉]`, f32, in row-major order.
    pub scales: Handle,
}

/// Quantizes a tensor `[…, R, C]` with a scale for each block of `[rows, columns]` elements of its last two dimensions; blocks at the end of a dimension
/// are cut off by it. Finite elements saturate, the others stay visible: [`Overflow::SaturateFinite`].
///
/// The scale of a block follows from its amax as in [`burn_fp8_core::scale::of_block`]. One launch and one read where blocks are
/// - parts of a row in memory, of 1, 2, 4, up to 128 units of 16 bytes, and rows are whole units; or
/// - 4, 8, 16, up to 128 elements of a column in memory, or 128 × 128, and rows are whole groups of four elements; where the tensor is a transposed view, columns
///   groups of 16.
///
/// Else two launches, each of which reads all.
///
/// # Errors
/// If the tensor is empty, or cannot be addressed; if it has less than two dimensions, or a block no elements.
pub fn quantize_blocks<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    block: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
) -> Result<QuantizedBlocks, KernelError> {
    launch(client, input, block, format, recipe, Division::of(client))
}

fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    block: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
    division: Division,
) -> Result<QuantizedBlocks, KernelError> {
    let span = input.check()?;
    let blocks = Blocks::new(input.shape, block)?;
    let rule = Rule::new(format, recipe);
    let division = rule.division(division);
    let encoding = Encoding { format, overflow: Overflow::SaturateFinite, division };
    // Units of cubes beyond the last block count, too.
    let reached = span.max(2 * blocks.elements() as u64);
    let address = address_type(client, reached)?;
    let request = Request { input, block, blocks, format, recipe, encoding, rule, address };
    let codes = Words::for_elements(client, blocks.elements(), 1);
    let scales = Words::new(client, blocks.count());
    let outputs = [&codes, &scales];
    if let Some(job) = rows::Job::new(&request) {
        rows::launch(client, &request, job, outputs);
    } else if let Some(tiles) = Tiles::new(&request) {
        tiles.launch(client, &request, outputs);
    } else {
        general::launch(client, &request, outputs);
    }
    Ok(QuantizedBlocks { codes: codes.into_handle(), scales: scales.into_handle() })
}

#[cfg(all(test, feature = "wgpu"))]
mod tests;
