//! Codes to numbers.

use burn_fp8_core::Fp8Format;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Quad};
use crate::element::Element;
use crate::error::KernelError;
use crate::grid::{Blocks, Scales, ScalesLaunch};
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::tensor::{Input, Scalar, check_codes};

/// The numbers that `len` codes stand for, f32. NaN codes give NaN. One launch.
///
/// Codes are one byte each, in whole u32 words.
///
/// # Errors
/// If there are no codes, more than the buffer holds, or more than can be addressed.
pub fn dequantize<R: Runtime>(
    client: &ComputeClient<R>,
    codes: &Handle,
    len: usize,
    format: Fp8Format,
) -> Result<Handle, KernelError> {
    if len == 0 {
        return Err(KernelError::Empty { shape: vec![0] });
    }
    check_codes(codes, len)?;
    launch(client, codes, len, format, Scalar::Host(1.0).scales(), false)
}

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
    check_codes(codes, elements)?;
    let of_blocks =
        Input { handle: scales, shape: &[blocks.count()], strides: &[1], element: Element::F32 };
    of_blocks.check()?;
    launch(client, codes, elements, format, blocks.scales(array(scales)), true)
}

/// There are as many codes, and as many scales as their blocks need, where numbers are `scaled`.
fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    codes: &Handle,
    len: usize,
    format: Fp8Format,
    scales: ScalesLaunch<R>,
    scaled: bool,
) -> Result<Handle, KernelError> {
    let address = address_type(client, len as u64)?;
    let values = Words::new(client, len);
    // SAFETY: There are as many words of codes, and scales for them; the output has room for a multiple of 16 bytes; words beyond are
    // skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        decode_words::launch_unchecked(
            client,
            grid(client, len.div_ceil(4 * CUBE as usize)),
            cube_dim(),
            address,
            array(codes),
            scales,
            values.arg(),
            len,
            format,
            scaled,
        );
    }
    Ok(values.into_handle())
}

/// Four codes for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
fn decode_words(
    codes: &Array<u32>,
    scales: Scales,
    values: &mut Array<Quad>,
    elements: usize,
    #[comptime] format: Fp8Format,
    #[comptime] scaled: bool,
) {
    let position = ABSOLUTE_POS;
    if position * 4 < elements {
        let mut value = bits::decode_word(codes[position], format);
        if comptime!(scaled) {
            let scales = scales.of_four(position * 4, elements);
            value = Quad::reinterpret(Vector::<f32, Const<4>>::reinterpret(value) * scales);
        }
        values[position] = value;
    }
}
