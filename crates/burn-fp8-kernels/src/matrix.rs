//! Matrices to codes, padded for a GEMM, as they are and transposed: by tiles of 128 × 128 elements, whose codes go to both outputs.
//!
//! A unit of a cube holds four rows of a few columns at a time, so blocks of 4 × 4 codes. Row codes are stored from registers.
//! Blocks are transposed there, four bytes in four words, and go to shared memory; from there each unit of the cube stores 16
//! bytes of a transposed row, neighbours side by side.
//!
//! Shared memory holds, for each column of the tile, 32 words of four codes. Their places are swapped among each other depending
//! on the column, so that neither writes, along rows, nor reads, along columns, meet in one of 32 banks.

use burn_fp8_core::{Fp8Format, Layouts, PADDING};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Divisor, Encoding, Quad};
use crate::error::KernelError;
use crate::grid::Scales;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Reading, Strided, View};
use crate::reduce::raise;
use crate::scale::{Chosen, ScaleRule, choose};
use crate::tensor::{Input, Scalar};
use crate::unit::{packed, quantize_unit};

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 128;
/// Words of a column of the tile.
pub(crate) const COLUMN: usize = TILE / 4;

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Job {
    reading: Reading,
    encoding: Encoding,
    /// Whether the codes of what is read as columns are wanted.
    transposed: bool,
    measure: bool,
}

/// A matrix `[R, C]` in FP8, padded with zeros to `[R', C']`, multiples of [`PADDING`](burn_fp8_core::PADDING).
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    /// The codes `[R', C']`, row by row, one byte each.
    pub rows: Option<Handle>,
    /// The codes `[C', R']` of the transposed matrix, row by row, one byte each.
    pub transposed: Option<Handle>,
    /// `[R', C']`.
    pub padded: [usize; 2],
    /// The scale: `x ≈ code × scale`.
    pub scale: Scalar,
    /// The largest finite magnitude of the tensor, one f32; not where the scale was given.
    pub amax: Option<Handle>,
}

/// Quantizes a tensor `[…, C]` as a matrix `[R, C]`: leading dimensions are joined. Three launches, one where the scale is given.
///
/// The matrix is read once, whichever codes are wanted; padding is written in the same pass. Fast where rows lie side by side or
/// columns do, in units of 16 bytes.
///
/// # Errors
/// If the tensor is empty, or cannot be addressed; if a scalar is not one.
pub fn quantize_matrix<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    format: Fp8Format,
    rule: &ScaleRule,
    layouts: Layouts,
) -> Result<QuantizedMatrix, KernelError> {
    let chosen = choose(client, input, format, rule)?;
    input.check()?;
    let encoding = Encoding::new(client, format, rule.overflow());
    let view = View::new(input);
    let padded = view.padded();
    let [rows, transposed] = launch(client, input, view, &chosen, encoding, layouts)?;
    let Chosen { scale, amax, .. } = chosen;
    Ok(QuantizedMatrix { rows, transposed, padded, scale, amax })
}

/// The codes of the matrix and of the transposed one, as far as they are wanted.
pub(crate) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    view: View,
    chosen: &Chosen,
    encoding: Encoding,
    layouts: Layouts,
) -> Result<[Option<Handle>; 2], KernelError> {
    let span = input.check()?;
    let [rows, columns] = view.padded();
    let address = address_type(client, span.max(rows as u64 * columns as u64))?;
    let new = || Words::for_elements(client, rows * columns, 1);
    let codes = (layouts != Layouts::Transposed).then(new);
    let transposed = (layouts != Layouts::Rows).then(new);
    let swapped = view.columns_lie_side_by_side();
    // The kernel reads along rows. Where the columns lie side by side, they are the rows of the transposed matrix.
    let (read, outputs) = match swapped {
        false => (view, [&codes, &transposed]),
        true => (view.transposed(), [&transposed, &codes]),
    };
    let [rows_arg, transposed_arg] =
        outputs.map(|codes: &Option<Words>| codes.as_ref().map(Words::arg));
    let [padded_rows, padded_columns] = read.padded();
    let tiles = [padded_rows, padded_columns].map(|size| size.div_ceil(TILE));
    let job = Job {
        reading: Reading { of: input.element, in_units: read.in_units(input) },
        encoding,
        transposed: outputs[1].is_some(),
        measure: chosen.measure,
    };
    // SAFETY: `Input::check` holds the tensor to its buffer, and only what is in the matrix is read; codes beyond the padded matrix are
    // not written; tiles beyond the last are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        quantize_tiles::launch_unchecked(
            client,
            grid(client, tiles[0] * tiles[1]),
            cube_dim(),
            address,
            job.reading.words(),
            job.reading.element().per_unit() / 4,
            array(input.handle),
            MatrixLaunch::new(read.row_count(), read.columns.0, read.rows.arg(), read.columns.1),
            chosen.scale.scales(),
            rows_arg.into(),
            transposed_arg.into(),
            chosen.amax.as_ref().filter(|_| chosen.measure).map(array).into(),
            tiles[0] * tiles[1],
            tiles[1],
            job,
        );
    }
    Ok([codes, transposed].map(|words| words.map(Words::into_handle)))
}

/// [`View`] in a kernel.
#[derive(CubeType, CubeLaunch, Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    of_rows: Strided,
    column_stride: usize,
}

/// Tiles of 128 × 128 elements, read along rows. `W` words of row codes are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
fn quantize_tiles<N: Size, W: Size>(
    input: &Array<Vector<u32, N>>,
    matrix: Matrix,
    scales: Scales,
    codes: &mut ComptimeOption<Array<Vector<u32, W>>>,
    transposed: &mut ComptimeOption<Array<Quad>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    tiles: usize,
    tile_columns: usize,
    #[comptime] job: Job,
) {
    if CUBE_POS < tiles {
        let width = comptime!(job.reading.element().per_unit());
        let tile = Tile::new(matrix.rows, matrix.columns, tile_columns, width);
        let divisor = bits::divisor(scales.one(), job.encoding.division);
        let mut turned = SharedMemory::<u32>::new(comptime!(shared_words(job.transposed)));
        let mut largest = 0u32;
        #[unroll]
        for step in 0..comptime!(steps(width)) {
            let row = tile.row(step);
            let mut loaded = Sequence::<Quad>::new();
            #[unroll]
            for i in 0..4usize {
                loaded.push(read(input, &matrix, row + i, tile.column, job.reading));
            }
            let found = store_rows::<W>(&loaded, &tile, &divisor, codes, &mut turned, step, job);
            largest = max(largest, found);
        }
        store_columns(&tile, &turned, transposed);
        if comptime!(job.measure) {
            raise(amax, largest, &mut turned);
        }
    }
}

/// Sixteen bytes of a row, or the f32 bits of four elements of it; zeros beyond the matrix.
#[cube]
fn read<N: Size>(
    input: &Array<Vector<u32, N>>,
    matrix: &Matrix,
    row: usize,
    first: usize,
    #[comptime] reading: Reading,
) -> Quad {
    let mut words = Quad::new(0u32);
    if row < matrix.rows {
        let start = matrix.of_rows.offset_of(row);
        if comptime!(reading.in_units) {
            if first < matrix.columns {
                words =
                    Quad::reinterpret(input[(start + first) / comptime!(reading.of.per_unit())]);
            }
        } else {
            #[unroll]
            for i in 0..4usize {
                let column = first + i;
                if column < matrix.columns {
                    let index = start + column * matrix.column_stride;
                    words[i] = bits::read_element(input, index, reading.of);
                }
            }
        }
    }
    words
}

/// How often a cube has to read to see its tile, four rows of `width` elements for each of its units.
fn steps(width: usize) -> usize {
    TILE * TILE / (4 * width * CUBE as usize)
}

/// The shared memory of a cube: for the transposed codes, and then for the amax. 16 KiB at most, which every device has.
fn shared_words(transposed: bool) -> usize {
    if transposed { TILE * COLUMN } else { CUBE as usize }
}

/// What a unit of a cube does in a tile.
#[derive(CubeType)]
struct Tile {
    /// The first row of the tile.
    first_row: usize,
    /// The first column of the tile.
    first_column: usize,
    /// The first column of this unit.
    column: usize,
    /// Which four rows of a step are this unit's.
    quad: u32,
    /// Rows and columns of the codes.
    padded_rows: usize,
    padded_columns: usize,
    /// How many columns this unit holds.
    #[cube(comptime)]
    width: usize,
}

#[cube]
impl Tile {
    /// The tile of this cube, for `width` columns a unit.
    fn new(rows: usize, columns: usize, tile_columns: usize, #[comptime] width: usize) -> Tile {
        let size = comptime!(TILE).runtime();
        let lanes = comptime!((TILE / width) as u32).runtime();
        let first_row = (CUBE_POS / tile_columns) * size;
        let first_column = (CUBE_POS % tile_columns) * size;
        let column = first_column + (UNIT_POS % lanes) as usize * width;
        let padded_rows = rows.div_ceil(PADDING) * PADDING;
        let padded_columns = columns.div_ceil(PADDING) * PADDING;
        let quad = UNIT_POS / lanes;
        Tile { first_row, first_column, column, quad, padded_rows, padded_columns, width }
    }

    /// Which four rows of the tile are this unit's in a step.
    fn quad(&self, #[comptime] step: usize) -> u32 {
        self.quad + comptime!((step * CUBE as usize * self.width / TILE) as u32).runtime()
    }

    /// The first row of this unit in a step.
    fn row(&self, #[comptime] step: usize) -> usize {
        self.first_row + self.quad(step) as usize * 4
    }
}

/// Quantizes four rows; stores their codes, and puts them, transposed, in shared memory. Returns their amax.
#[cube]
fn store_rows<W: Size>(
    loaded: &Sequence<Quad>,
    tile: &Tile,
    divisor: &Divisor,
    codes: &mut ComptimeOption<Array<Vector<u32, W>>>,
    turned: &mut SharedMemory<u32>,
    #[comptime] step: usize,
    #[comptime] job: Job,
) -> u32 {
    let per_row = W::value();
    let element = comptime!(job.reading.element());
    let mut largest = 0u32;
    let mut rows = Sequence::<Vector<u32, W>>::new();
    #[unroll]
    for i in 0..4usize {
        let quad = *loaded.index(i);
        let quantized = quantize_unit(quad, divisor, element, job.encoding, job.measure);
        largest = max(largest, quantized.amax);
        rows.push(packed(&quantized, quad, element));
    }
    #[comptime]
    if let ComptimeOption::Some(codes) = codes {
        let row = tile.row(step);
        #[unroll]
        for i in 0..4usize {
            if row + i < tile.padded_rows && tile.column < tile.padded_columns {
                let place = (row + i) * tile.padded_columns + tile.column;
                codes[place / comptime!(4 * per_row).runtime()] = *rows.index(i);
            }
        }
    }
    if comptime!(job.transposed) {
        #[unroll]
        for word in 0..per_row {
            let column =
                (tile.column - tile.first_column) as u32 + comptime!(4 * word as u32).runtime();
            turn(
                turned,
                column,
                tile.quad(step),
                rows.index(0usize)[word],
                rows.index(1usize)[word],
                rows.index(2usize)[word],
                rows.index(3usize)[word],
            );
        }
    }
    largest
}

/// Stores the transposed codes of the tile.
#[cube]
fn store_columns(
    tile: &Tile,
    turned: &SharedMemory<u32>,
    transposed: &mut ComptimeOption<Array<Quad>>,
) {
    #[comptime]
    if let ComptimeOption::Some(transposed) = transposed {
        let (rows, columns) = (tile.padded_rows, tile.padded_columns);
        sync_cube();
        store_turned(turned, transposed, tile.first_row, tile.first_column, rows, columns, 0usize);
    }
}

/// Stores a tile of transposed codes, whose first row and column are given, in a matrix that begins at `start`, where its units are in the matrix.
#[cube]
pub(crate) fn store_turned(
    turned: &SharedMemory<u32>,
    codes: &mut Array<Quad>,
    first_row: usize,
    first_column: usize,
    rows: usize,
    columns: usize,
    start: usize,
) {
    // Eight units store a column; the four columns of 32 units are read from different banks.
    let sixteenth = UNIT_POS % 8;
    let row = first_row + sixteenth as usize * 16;
    #[unroll]
    for i in 0..4u32 {
        let in_tile = UNIT_POS / 8 * 4 + i;
        let column = first_column + in_tile as usize;
        if row < rows && column < columns {
            let place = (start + column * rows + row) / 16;
            codes[place] = sixteen_of_column(turned, in_tile, sixteenth);
        }
    }
}

/// Puts the codes of four rows and four columns, a word for each row, in shared memory, a word for each column. `column` is the first of them in
/// the tile, `quad` says which four rows of the tile they are.
#[cube]
pub(crate) fn turn(
    turned: &mut SharedMemory<u32>,
    column: u32,
    quad: u32,
    first: u32,
    second: u32,
    third: u32,
    fourth: u32,
) {
    let block = transpose(first, second, third, fourth);
    #[unroll]
    for i in 0..4usize {
        turned[place(column + comptime!(i as u32).runtime(), quad)] = block[i];
    }
}

/// Sixteen codes of a column of the tile, from shared memory.
#[cube]
fn sixteen_of_column(turned: &SharedMemory<u32>, column: u32, sixteenth: u32) -> Quad {
    let mut codes = Quad::new(0u32);
    #[unroll]
    for j in 0..4usize {
        codes[j] = turned[place(column, sixteenth * 4 + comptime!(j as u32).runtime())];
    }
    codes
}

/// Where four codes of a column are in shared memory.
#[cube]
fn place(column: u32, quad: u32) -> usize {
    (column * comptime!(COLUMN as u32).runtime() + (quad ^ (column / 4))) as usize
}

/// Four words of four bytes, transposed.
#[cube]
fn transpose(a: u32, b: u32, c: u32, d: u32) -> Quad {
    let even = 0x00FF_00FFu32;
    let odd = 0xFF00_FF00u32;
    let ab_even = (a & even) | ((b & even) << 8);
    let ab_odd = ((a & odd) >> 8) | (b & odd);
    let cd_even = (c & even) | ((d & even) << 8);
    let cd_odd = ((c & odd) >> 8) | (d & odd);
    let mut block = Quad::new(0u32);
    block[0] = (ab_even & 0xFFFF) | (cd_even << 16);
    block[1] = (ab_odd & 0xFFFF) | (cd_odd << 16);
    block[2] = (ab_even >> 16) | (cd_even & 0xFFFF_0000u32);
    block[3] = (ab_odd >> 16) | (cd_odd & 0xFFFF_0000u32);
    block
}
