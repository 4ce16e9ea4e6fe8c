//! Blocks of one column, or of 128 × 128 elements, by tiles of 128 × 128, read once: which tensors that is for, the launch, the kernel.
//!
//! A unit of a cube holds four rows of four columns, four times: 32 rows of the tile are a step. Shared memory has a word for four rows of each
//! column: their amaxes, then the scales of blocks in place of these, and in the end codes that are to be transposed.

use core::ops::RangeInclusive;

use burn_fp8_core::PADDING;
use cubecl::prelude::*;

use super::rule::{Factors, Request, Rule, factors, scale_bits};
use crate::bits::{self, Encoding, INFINITY, Quad};
use crate::element::Element;
use crate::launch::{CUBE, Words, array, cube_dim, grid};
use crate::layout::{Dims, Strided, is_aligned};
use crate::matrix::{COLUMN, TILE, store_turned, turn};
use crate::reduce::cube_max_in;
use crate::unit::{packed, quantize_unit};

/// The rows that a block of one column may have, if they are a power of two.
const ROWS: RangeInclusive<usize> = 4..=TILE;
/// The groups of four columns in a tile, a unit of the cube for each.
const LANES: usize = TILE / 4;
/// The groups of four rows in a step.
const QUADS: usize = CUBE as usize / LANES;
const STEPS: usize = TILE / (4 * QUADS);

/// Which elements of a tile share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Share {
    /// All.
    Tile,
    /// So many of a column.
    Column(usize),
}

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TileJob {
    element: Element,
    encoding: Encoding,
    rule: Rule,
    turned: bool,
    share: Share,
}

impl TileJob {
    /// How many groups of four rows a block of a column has.
    fn quads(self) -> usize {
        match self.share {
            Share::Tile => TILE / 4,
            Share::Column(rows) => rows / 4,
        }
    }
}

/// Matrices as they lie in memory, their tiles, and their blocks.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct TilesArgs {
    rows: usize,
    columns: usize,
    pitch: usize,
    tile_rows: usize,
    tile_columns: usize,
    grid_rows: usize,
    grid_columns: usize,
}

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
        // Four elements take as many words as one takes bytes.
        // SAFETY: `Input::check` holds the tensor to its buffer, and only groups of four elements in the matrices are read, which are whole;
        // the outputs were made for the codes of all of these, and for the scales of all blocks; tiles beyond the last are skipped.
        #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
        unsafe {
            encode_tiles::launch_unchecked(
                client,
                grid(client, tiles),
                cube_dim(),
                address,
                input.element.size(),
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

/// A unit of a cube in its tile.
#[derive(CubeType, Clone, Copy)]
struct Seat {
    matrix: usize,
    /// The tile.
    tile_row: usize,
    tile_column: usize,
    /// Which four columns, and which four rows of a step, are its own.
    lane: u32,
    quad: u32,
}

#[cube]
impl Seat {
    fn new(args: &TilesArgs) -> Seat {
        let tile = CUBE_POS % (args.tile_rows * args.tile_columns);
        let lanes = comptime!(LANES as u32).runtime();
        Seat {
            matrix: CUBE_POS / (args.tile_rows * args.tile_columns),
            tile_row: tile / args.tile_columns,
            tile_column: tile % args.tile_columns,
            lane: UNIT_POS % lanes,
            quad: UNIT_POS / lanes,
        }
    }

    /// Which four rows of the tile are this unit's in a step.
    fn quad(&self, #[comptime] step: usize) -> u32 {
        self.quad + comptime!((step * QUADS) as u32).runtime()
    }

    fn row(&self, #[comptime] step: usize) -> usize {
        self.tile_row * TILE + self.quad(step) as usize * 4
    }

    fn column(&self) -> usize {
        self.tile_column * TILE + self.lane as usize * 4
    }

    /// The place of a scale in the output.
    fn scale(
        &self,
        row: usize,
        column: usize,
        args: &TilesArgs,
        #[comptime] turned: bool,
    ) -> usize {
        if comptime!(turned) {
            (self.matrix * args.grid_columns + column) * args.grid_rows + row
        } else {
            (self.matrix * args.grid_rows + row) * args.grid_columns + column
        }
    }
}

/// Codes along the rows of memory, or turned, along its columns; and the scales of blocks. `W` words are read at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
fn encode_tiles<W: Size>(
    input: &Array<Vector<u32, W>>,
    rows: &mut ComptimeOption<Array<u32>>,
    turned: &mut ComptimeOption<Array<Quad>>,
    scales: &mut Array<u32>,
    factors: Factors,
    args: TilesArgs,
    tiles: usize,
    matrices: Strided,
    #[comptime] job: TileJob,
) {
    if CUBE_POS < tiles {
        let seat = Seat::new(&args);
        let column = seat.column();
        let start = matrices.offset_of(seat.matrix) + column;
        let mut loaded = Sequence::<Quad>::new();
        #[unroll]
        for step in 0..STEPS {
            #[unroll]
            for i in 0..4usize {
                let row = seat.row(step) + i;
                let mut four = Quad::new(0u32);
                if row < args.rows && column < args.columns {
                    four = bits::widen_four(input[(start + row * args.pitch) / 4], job.element);
                }
                loaded.push(four);
            }
        }
        let mut shared = SharedMemory::<u32>::new(comptime!(TILE * COLUMN));
        match job.share {
            Share::Tile => share_tile(&loaded, &seat, &args, &factors, scales, &mut shared, job),
            Share::Column(_) => {
                share_columns(&loaded, &seat, &args, &factors, scales, &mut shared, job)
            }
        }
        let codes = encode(&loaded, &seat, &shared, job);
        let of_matrix = seat.matrix * args.rows * args.columns;
        #[comptime]
        if let ComptimeOption::Some(rows) = rows {
            #[unroll]
            for step in 0..STEPS {
                #[unroll]
                for i in 0..4usize {
                    let row = seat.row(step) + i;
                    if row < args.rows && column < args.columns {
                        let place = (of_matrix + row * args.columns + column) / 4;
                        rows[place] = *codes.index(comptime!(4 * step + i));
                    }
                }
            }
        }
        #[comptime]
        if let ComptimeOption::Some(turned) = turned {
            // All units have read their scales.
            sync_cube();
            #[unroll]
            for step in 0..STEPS {
                turn(
                    &mut shared,
                    seat.lane * 4,
                    seat.quad(step),
                    *codes.index(comptime!(4 * step)),
                    *codes.index(comptime!(4 * step + 1)),
                    *codes.index(comptime!(4 * step + 2)),
                    *codes.index(comptime!(4 * step + 3)),
                );
            }
            sync_cube();
            let (row, column) = (seat.tile_row * TILE, seat.tile_column * TILE);
            store_turned(&shared, turned, row, column, args.rows, args.columns, of_matrix);
        }
    }
}

/// The scale of a whole tile, in the first word of shared memory.
#[cube]
fn share_tile(
    loaded: &Sequence<Quad>,
    seat: &Seat,
    args: &TilesArgs,
    factors: &Factors,
    scales: &mut Array<u32>,
    shared: &mut SharedMemory<u32>,
    #[comptime] job: TileJob,
) {
    let largest = largest_of(loaded, 0usize, comptime!(4 * STEPS));
    let largest = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
    let amax = cube_max_in(shared, largest);
    // All units have read the amax.
    sync_cube();
    if UNIT_POS == 0 {
        let scale = scale_bits(amax, factors, job.rule);
        scales[seat.scale(seat.tile_row, seat.tile_column, args, job.turned)] = scale;
        shared[0] = scale;
    }
    sync_cube();
}

/// The scales of the blocks of columns, each in the first word of its block in shared memory.
#[cube]
fn share_columns(
    loaded: &Sequence<Quad>,
    seat: &Seat,
    args: &TilesArgs,
    factors: &Factors,
    scales: &mut Array<u32>,
    shared: &mut SharedMemory<u32>,
    #[comptime] job: TileJob,
) {
    // Steps that lie in one block are reduced in registers, to the place of the first of them.
    let steps = comptime!(job.quads().div_ceil(QUADS));
    #[unroll]
    for group in 0..comptime!(STEPS / steps) {
        let first = comptime!(group * steps);
        let largest = largest_of(loaded, comptime!(4 * first), comptime!(4 * steps));
        #[unroll]
        for i in 0..4usize {
            shared[word(seat.quad(first), i, seat.lane)] = largest[i];
        }
    }
    sync_cube();
    let quads = comptime!(job.quads());
    let blocks = comptime!(TILE / 4 / quads);
    let measured = comptime!(if quads < QUADS { quads } else { QUADS });
    #[unroll]
    for i in 0..comptime!((blocks * TILE).div_ceil(CUBE as usize)) {
        let index = UNIT_POS as usize + comptime!(i * CUBE as usize).runtime();
        let block = index / TILE;
        if block < blocks {
            let slot = index % TILE;
            let first = block * comptime!(quads * TILE).runtime() + slot;
            let mut amax = 0u32;
            #[unroll]
            for quad in 0..measured {
                amax = max(amax, shared[first + comptime!(quad * TILE).runtime()]);
            }
            let scale = scale_bits(amax, factors, job.rule);
            shared[first] = scale;
            let row = seat.tile_row * blocks + block;
            let column = seat.tile_column * TILE + slot % LANES * 4 + slot / LANES;
            if row < args.grid_rows && column < args.columns {
                scales[seat.scale(row, column, args, job.turned)] = scale;
            }
        }
    }
    sync_cube();
}

/// The largest finite magnitude in each column of some of the rows that a unit holds.
#[cube]
fn largest_of(loaded: &Sequence<Quad>, #[comptime] first: usize, #[comptime] count: usize) -> Quad {
    let mut largest = Quad::new(0u32);
    #[unroll]
    for i in 0..count {
        let magnitude = *loaded.index(comptime!(first + i)) & Quad::new(0x7FFF_FFFF);
        let is_finite = magnitude.less_than(Quad::new(INFINITY));
        largest = max(largest, select_many(is_finite, magnitude, Quad::new(0u32)));
    }
    largest
}

/// The words of codes of the rows that a unit holds.
#[cube]
fn encode(
    loaded: &Sequence<Quad>,
    seat: &Seat,
    shared: &SharedMemory<u32>,
    #[comptime] job: TileJob,
) -> Sequence<u32> {
    let mut codes = Sequence::<u32>::new();
    #[unroll]
    for step in 0..STEPS {
        let mut scale = Quad::new(shared[0]);
        if comptime!(job.share != Share::Tile) {
            let quads = comptime!(job.quads() as u32).runtime();
            let first = seat.quad(step) / quads * quads;
            #[unroll]
            for i in 0..4usize {
                scale[i] = shared[word(first, i, seat.lane)];
            }
        }
        let divisor = bits::divisor_of_each(Vector::reinterpret(scale), job.encoding.division);
        #[unroll]
        for i in 0..4usize {
            let four = *loaded.index(comptime!(4 * step + i));
            let quantized = quantize_unit(four, &divisor, Element::F32, job.encoding, false);
            let word = packed::<Const<1>>(&quantized, four, Element::F32);
            codes.push(word[0]);
        }
    }
    codes
}

/// The place of four rows of a column in shared memory: the columns of a unit are apart, so that those of 32 units lie in 32 banks.
#[cube]
fn word(quad: u32, #[comptime] column: usize, lane: u32) -> usize {
    quad as usize * TILE + comptime!(column * LANES).runtime() + lane as usize
}
