//! Codes and the scales of their blocks to numbers.

use burn_fp8_core::Fp8Format;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::grid::{Blocks, Grid};
use crate::bits::{self, Quad};
use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::tensor::{Input, check_codes};

/// Codes of a tensor, and a scale for each block of its last two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct BlockCodes<'a> {
    /// The codes in row-major order, one byte each, in whole u32 words.
    pub codes: &'a Handle,
    /// The scales `[…, ⌈R / rows⌉, ⌈C / columns⌉]`, f32, in row-major order.
    pub scales: &'a Handle,
    /// The shape `[…, R, C]`.
    pub shape: &'a [usize],
    /// The rows and the columns of a block. Blocks at the end of a dimension are cut off by it.
    pub block: [usize; 2],
    /// The format of the codes.
    pub format: Fp8Format,
}

/// The numbers that codes stand for, times the scales of their blocks: f32, in row-major order. One launch.
///
/// # Errors
/// If there are no codes, more than a buffer holds, or more than can be addressed; if a buffer has fewer scales than there are blocks; if there is no
/// matrix, or a block without elements.
pub fn dequantize_blocks<R: Runtime>(
    client: &ComputeClient<R>,
    blocks: &BlockCodes<'_>,
) -> Result<Handle, KernelError> {
    let BlockCodes { codes, scales, shape, block, format } = *blocks;
    if shape.contains(&0) {
        return Err(KernelError::Empty { shape: shape.into() });
    }
    let blocks = Blocks::new(shape, block)?;
    let elements = blocks.elements();
    let words = check_codes(codes, elements)?;
    let of_blocks =
        Input { handle: scales, shape: &[blocks.count()], strides: &[1], element: Element::F32 };
    of_blocks.check()?;
    let address = address_type(client, elements as u64)?;
    let values = Words::for_elements(client, elements, 4);
    // SAFETY: There are as many words of codes, and a scale for each block; the output has room for a multiple of 16 bytes; words
    // beyond are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        decode_blocks::launch_unchecked(
            client,
            grid(client, words.div_ceil(CUBE as usize)),
            cube_dim(),
            address,
            array(codes),
            array(scales),
            values.arg(),
            blocks.arg(),
            words,
            elements,
            format,
        );
    }
    Ok(values.into_handle())
}

/// Four codes for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
fn decode_blocks(
    codes: &Array<u32>,
    scales: &Array<u32>,
    values: &mut Array<Quad>,
    grid: Grid,
    words: usize,
    elements: usize,
    #[comptime] format: Fp8Format,
) {
    let position = ABSOLUTE_POS;
    if position < words {
        let value =
            Vector::<f32, Const<4>>::reinterpret(bits::decode_word(codes[position], format));
        let scales = grid.numbers(scales, position * 4, elements);
        let scales = Vector::<f32, Const<4>>::reinterpret(scales);
        values[position] = Quad::reinterpret(value * scales);
    }
}
