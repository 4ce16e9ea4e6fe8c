//! Tensors with a scale for each block of their last two dimensions.

mod rows;
mod rule;
mod tiles;

use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Division, Encoding, INFINITY};
use crate::element::Element;
use crate::error::KernelError;
use crate::grid::{Blocks, Grid};
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Dims, Reads, Strided};
use crate::quantize;
use crate::reduce::cube_max;
use crate::tensor::Input;
use rule::{Factors, Request, Rule, factors, scale_bits};
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

pub(crate) fn launch<R: Runtime>(
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
        measure(client, &request, &scales);
        let reads = Reads::of_elements(input, Dims::new(input.shape, input.strides));
        let job = quantize::Job { encoding, measure: false };
        let scales = (blocks.scales(scales.arg()), None);
        quantize::launch(client, &reads, scales, [Some(&codes), None], job, address);
    }
    Ok(QuantizedBlocks { codes: codes.into_handle(), scales: scales.into_handle() })
}

/// The scales of blocks of any shape, in a tensor of any layout.
fn measure<R: Runtime>(client: &ComputeClient<R>, request: &Request<'_>, scales: &Words) {
    /// The elements that one unit of a cube measures alone.
    const ALONE: usize = 256;
    let Request { input, blocks, format, recipe, rule, address, .. } = *request;
    let rank = input.shape.len();
    let (leading, of_matrix) = input.strides.split_at(rank - 2);
    let by_cubes = blocks.block.iter().product::<usize>() > ALONE;
    let cubes = if by_cubes { blocks.count() } else { blocks.count().div_ceil(CUBE as usize) };
    // SAFETY: `Input::check` holds the tensor to its buffer, and blocks are cut off at its ends; there is a scale for each of them, and
    // those beyond are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        measure_blocks::launch_unchecked(
            client,
            grid(client, cubes),
            cube_dim(),
            address,
            array(input.handle),
            scales.arg(),
            blocks.arg(),
            factors(format, recipe),
            blocks.count(),
            Dims::new(&input.shape[..rank - 2], leading).arg(),
            of_matrix[0],
            of_matrix[1],
            input.element,
            rule,
            by_cubes,
        );
    }
}

/// The scale of each block, by a cube, or by a unit of one.
#[cube(launch_unchecked, address_type = "dynamic")]
fn measure_blocks(
    input: &Array<Vector<u32, Const<1>>>,
    scales: &mut Array<u32>,
    grid: Grid,
    factors: Factors,
    blocks: usize,
    matrices: Strided,
    row_stride: usize,
    column_stride: usize,
    #[comptime] element: Element,
    #[comptime] rule: Rule,
    #[comptime] by_cubes: bool,
) {
    let block = if comptime!(by_cubes) { CUBE_POS } else { ABSOLUTE_POS };
    if block < blocks {
        let place = grid.place(block);
        let start = matrices.offset_of(place.matrix)
            + place.row * row_stride
            + place.column * column_stride;
        let (first, step) = if comptime!(by_cubes) {
            (UNIT_POS as usize, comptime!(CUBE as usize).runtime())
        } else {
            (0usize.runtime(), 1usize.runtime())
        };
        let mut amax = 0u32;
        let mut i = first;
        while i < place.rows * place.columns {
            let row = i / place.columns;
            let column = i % place.columns;
            let index = start + row * row_stride + column * column_stride;
            let magnitude = bits::read_element(input, index, element) & 0x7FFF_FFFF;
            amax = max(amax, select(magnitude < INFINITY, magnitude, 0));
            i += step;
        }
        if comptime!(by_cubes) {
            amax = cube_max(amax);
        }
        if comptime!(!by_cubes) || UNIT_POS == 0 {
            scales[block] = scale_bits(amax, &factors, rule);
        }
    }
}
