//! Matrices to codes, padded for a GEMM, as they are and transposed.

mod job;
mod kernel;
mod tile;
mod view;

use burn_fp8_core::{Fp8Format, Layouts};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::Encoding;
use crate::error::KernelError;
use crate::launch::{Words, address_type, array, cube_dim, grid};
use crate::scale::{Chosen, ScaleRule, choose, scale_args};
use crate::strided;
use crate::tensor::{Input, Scalar};
use job::Job;
pub(crate) use tile::{COLUMN, TILE, sixteen_of_column, turn};
pub(crate) use view::View;

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
    let span = input.check()?;
    let encoding = Encoding::new(client, format, rule.overflow());
    let view = View::new(input);
    let padded = view.padded();
    let [rows, transposed] = launch(client, input, span, view, &chosen, encoding, layouts)?;
    let Chosen { scale, amax, .. } = chosen;
    Ok(QuantizedMatrix { rows, transposed, padded, scale, amax })
}

/// The codes of the matrix and of the transposed one, as far as they are wanted.
pub(crate) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    span: u64,
    view: View,
    chosen: &Chosen,
    encoding: Encoding,
    layouts: Layouts,
) -> Result<[Option<Handle>; 2], KernelError> {
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
    let (scale, given) = scale_args(&chosen.scale);
    let amax = chosen.amax.as_ref().filter(|_| chosen.measure).map(array).into();
    let (sizes, strides) = strided::args(&read.rows);
    let grid = grid(client, tiles[0] * tiles[1]);
    let job = Job {
        element: input.element,
        encoding,
        transposed: outputs[1].is_some(),
        measure: chosen.measure,
    };
    if read.in_units(input) {
        // SAFETY: `Input::check` holds the tensor to its buffer, and only units in the matrix are read; codes beyond the padded
        // matrix are not written; tiles beyond the last are skipped.
        #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
        unsafe {
            kernel::quantize_unit_tiles::launch_unchecked(
                client,
                grid,
                cube_dim(),
                address,
                input.element.per_unit() / 4,
                array(input.handle),
                scale,
                rows_arg.into(),
                transposed_arg.into(),
                amax,
                given,
                read.row_count(),
                read.columns.0,
                tiles[0],
                tiles[1],
                sizes,
                strides,
                job,
            );
        }
    } else {
        // SAFETY: As above, for elements.
        #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
        unsafe {
            kernel::quantize_element_tiles::launch_unchecked(
                client,
                grid,
                cube_dim(),
                address,
                array(input.handle),
                scale,
                rows_arg.into(),
                transposed_arg.into(),
                amax,
                given,
                read.row_count(),
                read.columns.0,
                tiles[0],
                tiles[1],
                sizes,
                strides,
                read.columns.1,
                job,
            );
        }
    }
    Ok([codes, transposed].map(|words| words.map(Words::into_handle)))
}
