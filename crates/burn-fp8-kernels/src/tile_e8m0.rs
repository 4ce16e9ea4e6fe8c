//! The scales of MXFP8 as cuBLASLt reads them.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::tensor::Input;

/// The rows and the blocks of a tile.
const TILE: [usize; 2] = [128, 4];
/// The rows of a tile whose words follow each other as columns do: 32, four times side by side.
const STRIPE: usize = 32;

/// The scales `[rows, blocks]` of MXFP8, f32 powers of two, as E8M0 bytes in tiles of 128 rows and 4 blocks, 512 bytes each: what cuBLASLt takes as
/// `CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0`, PyTorch as `SWIZZLE_32_4_4`. One launch.
///
/// Tiles follow each other row by row. In a tile the byte of row `r` and block `b` lies at `(r % 32) × 16 + (r / 32) × 4 + b`. Rows and blocks that fill
/// up the last tiles are zero. 2^-127 becomes 0; what is no power of two becomes 255, NaN, so that it shows in the product.
///
/// # Errors
/// If the scales are empty, not f32, no matrix, or cannot be addressed.
pub fn tile_e8m0<R: Runtime>(
    client: &ComputeClient<R>,
    scales: &Input<'_>,
) -> Result<Handle, KernelError> {
    let span = scales.check()?;
    if scales.element != Element::F32 {
        return Err(KernelError::Element { element: scales.element });
    }
    let (&[rows, blocks], &[row_stride, block_stride]) = (scales.shape, scales.strides) else {
        return Err(KernelError::NoMatrix { shape: scales.shape.into() });
    };
    let [tile_rows, tile_columns] = [rows.div_ceil(TILE[0]), blocks.div_ceil(TILE[1])];
    let words = Words::new(client, tile_rows * tile_columns * TILE[0]);
    let address = address_type(client, span.max(words.words as u64))?;
    // SAFETY: `Input::check` holds the scales to their buffer, and only those that there are are read; words beyond the last are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        tile_scales::launch_unchecked(
            client,
            grid(client, words.words.div_ceil(CUBE as usize)),
            cube_dim(),
            address,
            array(scales.handle),
            words.arg(),
            words.words,
            tile_columns,
            rows,
            blocks,
            row_stride,
            block_stride,
        );
    }
    Ok(words.into_handle())
}

/// The byte of a scale, given as its bits.
#[cube]
fn byte_of(scale: u32) -> u32 {
    let is_normal = scale << 9 == 0 && scale >> 31 == 0 && scale != 0;
    // 2^-127 is a subnormal number, whose exponent is 0 as its byte is.
    select(is_normal || scale == 0x40_0000, scale >> 23, 255)
}

/// Four blocks of a row for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
fn tile_scales(
    scales: &Array<u32>,
    tiled: &mut Array<u32>,
    words: usize,
    tile_columns: usize,
    rows: usize,
    blocks: usize,
    row_stride: usize,
    block_stride: usize,
) {
    let position = ABSOLUTE_POS;
    if position < words {
        let [tile_rows, tile_blocks] = comptime!(TILE);
        let (tile, word) = (position / tile_rows, position % tile_rows);
        let stripes = comptime!(TILE[0] / STRIPE);
        let in_tile = (word % stripes) * STRIPE + word / stripes;
        let row = (tile / tile_columns) * tile_rows + in_tile;
        let first = (tile % tile_columns) * tile_blocks;
        let mut packed = 0u32;
        if row < rows {
            #[unroll]
            for i in 0..4usize {
                if first + i < blocks {
                    let scale = scales[row * row_stride + (first + i) * block_stride];
                    packed |= byte_of(scale) << comptime!(8 * i as u32).runtime();
                }
            }
        }
        tiled[position] = packed;
    }
}
