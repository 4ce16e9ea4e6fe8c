//! Tensors with a scale for each block of their last two dimensions.

mod dequantize;
mod general;
mod grid;
mod rows;
mod rule;

use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{Division, Encoding};
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::Dims;
use crate::matrix::View;
use crate::strided;
use crate::tensor::Input;
pub use dequantize::{BlockCodes, dequantize_blocks};
use grid::Blocks;
use rule::{Rule, factors};

/// A tensor `[…, R, C]` in FP8, with a scale for each block.
#[derive(Clone, Debug)]
pub struct QuantizedBlocks {
    /// The codes in row-major order, one byte each; in whole u32 words, whose last bytes are zero where there are no codes.
    pub codes: Handle,
    /// The scales `[…, ⌈R / rows⌉, ⌈C / columns⌉]`, f32, in row-major order.
    pub scales: Handle,
}

/// What is launched for a tensor.
struct Request<'a> {
    input: &'a Input<'a>,
    blocks: Blocks,
    format: Fp8Format,
    recipe: Recipe,
    encoding: Encoding,
    rule: Rule,
    address: AddressType,
}

/// Quantizes a tensor `[…, R, C]` with a scale for each block of `[rows, columns]` elements of its last two dimensions; blocks at the end of a dimension
/// are cut off by it. Finite elements saturate, the others stay visible: [`Overflow::SaturateFinite`].
///
/// The scale of a block follows from its amax as in [`burn_fp8_core::scale::of_block`]. One launch and one read where a block is a part of a row, rows lie
/// in units of 16 bytes, and a block has 1, 2, 4, up to 128 of them; else two of each.
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
    let request = Request { input, blocks, format, recipe, encoding, rule, address };
    let codes = Words::for_elements(client, blocks.elements(), 1);
    let scales = Words::new(client, blocks.count());
    let view = View::new(input);
    let job = rows::Job::new(input.element, encoding, rule, block[1]);
    match job.filter(|_| blocks.block[0] == 1 && view.in_units(input)) {
        Some(job) => in_rows(client, &request, view, job, [&codes, &scales]),
        None => in_general(client, &request, [&codes, &scales]),
    }
    Ok(QuantizedBlocks { codes: codes.into_handle(), scales: scales.into_handle() })
}

/// Blocks of one row, in units of 16 bytes.
fn in_rows<R: Runtime>(
    client: &ComputeClient<R>,
    request: &Request<'_>,
    view: View,
    job: rows::Job,
    [codes, scales]: [&Words; 2],
) {
    let Request { input, blocks, format, recipe, address, .. } = *request;
    let per_unit = input.element.per_unit();
    let (sizes, strides) = strided::args(&view.rows);
    // SAFETY: `Input::check` holds the tensor to its buffer, and only units of rows that there are are read; the outputs were made
    // for the codes of all of these, and for the scales of all blocks.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        rows::encode_row_blocks::launch_unchecked(
            client,
            grid(client, job.cubes(blocks.count())),
            cube_dim(),
            address,
            per_unit / 4,
            array(input.handle),
            codes.arg(),
            scales.arg(),
            factors(format, recipe),
            blocks.count(),
            blocks.grid()[1],
            view.columns.0 / per_unit,
            sizes,
            strides,
            job,
        );
    }
}

/// The elements that one unit of a cube measures alone.
const ALONE: usize = 256;

/// Any blocks.
fn in_general<R: Runtime>(
    client: &ComputeClient<R>,
    request: &Request<'_>,
    [codes, scales]: [&Words; 2],
) {
    let Request { input, blocks, format, recipe, encoding, rule, address } = *request;
    let rank = input.shape.len();
    let (leading, of_matrix) = input.strides.split_at(rank - 2);
    let matrices = Dims::new(&input.shape[..rank - 2], leading);
    let (sizes, strides) = strided::args(&matrices);
    let by_cubes = blocks.block.iter().product::<usize>() > ALONE;
    let cubes = if by_cubes { blocks.count() } else { blocks.count().div_ceil(CUBE as usize) };
    // SAFETY: `Input::check` holds the tensor to its buffer, and blocks are cut off at its ends; there is a scale for each of them, and
    // those beyond are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        general::measure_blocks::launch_unchecked(
            client,
            grid(client, cubes),
            cube_dim(),
            address,
            array(input.handle),
            scales.arg(),
            blocks.arg(),
            factors(format, recipe),
            blocks.count(),
            sizes,
            strides,
            of_matrix[0],
            of_matrix[1],
            input.element,
            rule,
            by_cubes,
        );
    }
    let elements = blocks.elements();
    let (sizes, strides) = strided::args(&Dims::new(input.shape, input.strides));
    // SAFETY: As above; elements beyond the last are skipped, and the codes were made for all of those before.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        general::encode_elements::launch_unchecked(
            client,
            grid(client, elements.div_ceil(4 * CUBE as usize)),
            cube_dim(),
            address,
            array(input.handle),
            scales.arg(),
            codes.arg(),
            blocks.arg(),
            elements,
            sizes,
            strides,
            input.element,
            encoding,
        );
    }
}

#[cfg(all(test, feature = "wgpu"))]
mod tests;
