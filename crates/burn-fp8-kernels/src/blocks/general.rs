//! Blocks of any shape, in tensors of any layout: one kernel measures them, one encodes.

use cubecl::prelude::*;

use super::grid::Grid;
use super::request::Request;
use super::rule::{Factors, Rule, factors, scale_bits};
use crate::bits::{self, Encoding, INFINITY, Quad};
use crate::element::Element;
use crate::launch::{CUBE, Words, array, cube_dim, grid};
use crate::layout::Dims;
use crate::reduce::cube_max;
use crate::strided::{self, offset_of};
use crate::unit::quantize_unit;

/// The elements that one unit of a cube measures alone.
const ALONE: usize = 256;

pub(super) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    request: &Request<'_>,
    [codes, scales]: [&Words; 2],
) {
    let Request { input, blocks, format, recipe, encoding, rule, address, .. } = *request;
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
        encode_elements::launch_unchecked(
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

/// The scale of each block, by a cube, or by a unit of one.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn measure_blocks(
    input: &Array<u32>,
    scales: &mut Array<u32>,
    grid: Grid,
    factors: Factors,
    blocks: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    row_stride: usize,
    column_stride: usize,
    #[comptime] element: Element,
    #[comptime] rule: Rule,
    #[comptime] by_cubes: bool,
) {
    let block = if comptime!(by_cubes) { CUBE_POS } else { ABSOLUTE_POS };
    if block < blocks {
        let place = grid.place(block);
        let start = offset_of(place.matrix, &sizes, &strides)
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
            let amax = cube_max(amax);
            if UNIT_POS == 0 {
                scales[block] = scale_bits(amax, &factors, rule);
            }
        } else {
            scales[block] = scale_bits(amax, &factors, rule);
        }
    }
}

/// The codes of a tensor whose blocks are measured, four for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn encode_elements(
    input: &Array<u32>,
    scales: &Array<u32>,
    codes: &mut Array<u32>,
    grid: Grid,
    elements: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    #[comptime] element: Element,
    #[comptime] encoding: Encoding,
) {
    let position = ABSOLUTE_POS;
    let first = position * 4;
    if first < elements {
        let mut words = Quad::new(0u32);
        #[unroll]
        for i in 0..4usize {
            if first + i < elements {
                let index = offset_of(first + i, &sizes, &strides);
                words[i] = bits::read_element(input, index, element);
            }
        }
        let scales = grid.numbers(scales, first, elements);
        let divisor = bits::divisor_of_each(scales, encoding.division);
        let quantized = quantize_unit(words, &divisor, Element::F32, encoding, false);
        codes[position] =
            bits::pack(&quantized.codes, 0usize) | bits::code_signs(words, Element::F32, 0usize);
    }
}
