//! Matrices to codes, padded for a GEMM, as they are and transposed.

mod tile;

use burn_fp8_core::{Fp8Format, Layouts};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Encoding, Quad};
use crate::error::KernelError;
use crate::grid::Scales;
use crate::launch::{Words, address_type, array, cube_dim, grid};
use crate::layout::{Reading, Strided, View};
use crate::reduce::raise;
use crate::scale::{Chosen, ScaleRule, choose};
use crate::tensor::{Input, Scalar};
pub(crate) use tile::{COLUMN, TILE, store_turned, turn};
use tile::{Job, Tile, store_columns, store_rows};

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
    let tiles = [padded_rows, padded_columns].map(|size| size.div_ceil(tile::TILE));
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
        let mut turned = SharedMemory::<u32>::new(comptime!(tile::shared_words(job.transposed)));
        let mut largest = 0u32;
        #[unroll]
        for step in 0..comptime!(tile::steps(width)) {
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
