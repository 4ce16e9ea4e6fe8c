//! Blocks of one column, or of 128 × 128 elements, by tiles of 128 × 128: which tensors that is for, and the launch.

use burn_fp8_core::PADDING;
use cubecl::prelude::*;

use super::rule::{Request, factors};
use super::tile_kernel::{ROWS, Share, TileJob, TilesArgsLaunch, encode_tiles};
use crate::launch::{Words, array, cube_dim, grid};
use crate::layout::{Dims, is_aligned};
use crate::matrix::TILE;

/// The matrices of a tensor in the direction in which they lie in memory.
#[derive(Clone, Debug)]
pub(super) struct Tiles {
    matrices: Dims,
    rows: usize,
    /// Elements that lie side by side.
    columns: usize,
    /// From a row to the next.
    pitch: usize,
    /// Whether rows and columns are those of the transposed tensor.
    turned: bool,
    share: Share,
}

impl Tiles {
    /// Where blocks and the layout of the tensor are such.
    pub(super) fn new(request: &Request<'_>) -> Option<Self> {
        let Request { input, block, .. } = *request;
        let (leading, &[rows, columns]) = input.shape.split_last_chunk()?;
        let (leading_strides, &[row_stride, column_stride]) = input.strides.split_last_chunk()?;
        let matrices = Dims::new(leading, leading_strides);
        let oriented = |turned: bool| {
            let ([rows, columns], [pitch, side_by_side], [block_rows, block_columns]) = match turned
            {
                false => ([rows, columns], [row_stride, column_stride], block),
                true => {
                    let swap = |[a, b]: [usize; 2]| [b, a];
                    ([columns, rows], [column_stride, row_stride], swap(block))
                }
            };
            let share = match [block_rows, block_columns] {
                [TILE, TILE] => Share::Tile,
                [rows, 1] if ROWS.contains(&rows) && rows.is_power_of_two() => Share::Column(rows),
                _ => return None,
            };
            let whole = |n: usize| n.is_multiple_of(4);
            let in_fours = side_by_side == 1
                && whole(columns)
                && (whole(pitch) || rows == 1)
                && matrices.0.iter().all(|(_, stride)| whole(*stride))
                && is_aligned(input);
            // Turned codes are stored sixteen at a time.
            let suits = in_fours && (!turned || rows.is_multiple_of(PADDING));
            let matrices = matrices.clone();
            suits.then_some(Self { matrices, rows, columns, pitch, turned, share })
        };
        oriented(false).or_else(|| oriented(true))
    }

    pub(super) fn launch<R: Runtime>(
        self,
        client: &ComputeClient<R>,
        request: &Request<'_>,
        [codes, scales]: [&Words; 2],
    ) {
        let Self { matrices, rows, columns, pitch, turned, share } = self;
        let Request { input, format, recipe, encoding, rule, address, .. } = *request;
        let [tile_rows, tile_columns] = [rows, columns].map(|size| size.div_ceil(TILE));
        let tiles = matrices.elements() * tile_rows * tile_columns;
        let [grid_rows, grid_columns] = match share {
            Share::Tile => [tile_rows, tile_columns],
            Share::Column(of_block) => [rows.div_ceil(of_block), columns],
        };
        let (of_rows, of_columns) = match turned {
            false => (ComptimeOptionArgs::Some(codes.arg()), ComptimeOptionArgs::None),
            true => (ComptimeOptionArgs::None, ComptimeOptionArgs::Some(codes.arg())),
        };
        // SAFETY: `Input::check` holds the tensor to its buffer, and only groups of four elements in the matrices are read, which are whole;
        // the outputs were made for the codes of all of these, and for the scales of all blocks; tiles beyond the last are skipped.
        #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
        unsafe {
            encode_tiles::launch_unchecked(
                client,
                grid(client, tiles),
                cube_dim(),
                address,
                4 / input.element.per_word(),
                array(input.handle),
                of_rows,
                of_columns,
                scales.arg(),
                factors(format, recipe),
                TilesArgsLaunch::new(
                    rows,
                    columns,
                    pitch,
                    tile_rows,
                    tile_columns,
                    grid_rows,
                    grid_columns,
                ),
                tiles,
                matrices.arg(),
                TileJob { element: input.element, encoding, rule, turned, share },
            );
        }
    }
}
