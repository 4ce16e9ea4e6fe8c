//! Tensors to codes and to the values of codes.

mod elements;
mod job;
mod units;

use burn_fp8_core::{Fp8Format, Layouts, Overflow};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::Encoding;
use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::Dims;
use crate::matrix::{self, View};
use crate::scale::{Chosen, ScaleRule, choose, scale_args};
use crate::strided;
use crate::tensor::{Input, Scalar};
use crate::unit::Values;
use job::Job;

/// What [`quantize`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// Codes.
    Codes,
    /// The numbers that the codes stand for, not multiplied by the scale, as f32.
    Values,
    /// Both, in one pass.
    CodesAndValues,
}

/// A tensor in FP8.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The codes in row-major order, one byte each; in whole u32 words, whose last bytes are zero where there are no codes.
    pub codes: Option<Handle>,
    /// The numbers that the codes stand for, f32, in row-major order.
    pub values: Option<Handle>,
    /// The scale: `x ≈ values × scale`.
    pub scale: Scalar,
    /// The largest finite magnitude of the tensor, one f32; not where the scale was given.
    pub amax: Option<Handle>,
}

/// Quantizes a tensor. Three launches, one where the scale is given.
///
/// # Errors
/// If the tensor is empty, or cannot be addressed; if a scalar is not one.
pub fn quantize<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    format: Fp8Format,
    rule: &ScaleRule,
    outputs: Outputs,
) -> Result<Quantized, KernelError> {
    let chosen = choose(client, input, format, rule)?;
    let plain = Values { element: Element::F32, scaled: false };
    let job = Job {
        element: input.element,
        encoding: Encoding::new::<R>(client, format, rule.overflow()),
        codes: outputs != Outputs::Values,
        values: (outputs != Outputs::Codes).then_some(plain),
        measure: chosen.measure,
    };
    let [codes, values] = launch(client, input, &chosen, job)?;
    Ok(Quantized { codes, values, scale: chosen.scale, amax: chosen.amax })
}

/// Quantizes and decodes again: the numbers that the codes of `x / scale` stand for, times `scale`, rounded to f32 and then to
/// `output`. In row-major order. One launch.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_dequantize<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    format: Fp8Format,
    scale: &Scalar,
    overflow: Overflow,
    output: Element,
) -> Result<Handle, KernelError> {
    scale.check()?;
    let chosen = Chosen { scale: scale.clone(), amax: None, measure: false };
    let job = Job {
        element: input.element,
        encoding: Encoding::new::<R>(client, format, overflow),
        codes: false,
        values: Some(Values { element: output, scaled: true }),
        measure: false,
    };
    let [_, values] = launch(client, input, &chosen, job)?;
    Ok(values.expect("values were asked for"))
}

/// Codes and values, as far as the job has them.
fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    chosen: &Chosen,
    job: Job,
) -> Result<[Option<Handle>; 2], KernelError> {
    let span = input.check()?;
    if let Some(codes) = in_tiles(client, input, span, chosen, job)? {
        return Ok([Some(codes), None]);
    }
    let elements = input.elements();
    let dims = Dims::new(input.shape, input.strides);
    let address = address_type(client, span.max(elements as u64))?;
    let codes = job.codes.then(|| Words::for_elements(client, elements, 1));
    let values =
        job.values.map(|values| Words::for_elements(client, elements, values.element.size()));
    let (scale, given) = scale_args(&chosen.scale);
    let amax = chosen.amax.as_ref().filter(|_| job.measure).map(array).into();
    match dims.as_units(input.element, input.handle.offset_start.unwrap_or(0)) {
        Some(units) => {
            let per_unit = input.element.per_unit();
            let cubes = units.count().div_ceil(units::UNROLLED * CUBE as usize);
            // SAFETY: `Input::check` holds the tensor to its buffer; units beyond `units.count()` are skipped, and the outputs
            // were made for all of those before.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                units::quantize_units::launch_unchecked(
                    client,
                    grid(client, cubes),
                    cube_dim(),
                    address,
                    per_unit / 4,
                    job.values.map_or(1, |values| (per_unit / values.element.per_word()).min(4)),
                    array(input.handle),
                    scale,
                    codes.as_ref().map(Words::arg).into(),
                    values.as_ref().map(Words::arg).into(),
                    amax,
                    given,
                    units.count(),
                    units.columns,
                    units.pitch,
                    job,
                    units.is_pitched(),
                );
            }
        }
        None => {
            let cubes = elements.div_ceil(4 * CUBE as usize);
            let (sizes, strides) = strided::args(&dims);
            // SAFETY: `Input::check` holds the tensor to its buffer; elements beyond the last are skipped; outputs have room for a
            // multiple of 16 bytes, and four elements take 16 at most.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                elements::quantize_elements::launch_unchecked(
                    client,
                    grid(client, cubes),
                    cube_dim(),
                    address,
                    job.values.map_or(1, |values| 4 / values.element.per_word()),
                    array(input.handle),
                    scale,
                    codes.as_ref().map(Words::arg).into(),
                    values.as_ref().map(Words::arg).into(),
                    amax,
                    given,
                    elements,
                    sizes,
                    strides,
                    job,
                );
            }
        }
    }
    Ok([codes, values].map(|words| words.map(Words::into_handle)))
}

/// The codes of a transposed matrix, by the kernel that reads such a matrix along its columns; where its rows need no padding.
fn in_tiles<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    span: u64,
    chosen: &Chosen,
    job: Job,
) -> Result<Option<Handle>, KernelError> {
    let view = View::new(input);
    let [rows, columns] = view.padded();
    let suits = job.values.is_none()
        && columns == view.columns.0
        && view.columns_lie_side_by_side()
        && view.transposed().in_units(input);
    if !suits {
        return Ok(None);
    }
    let beyond = (rows - view.row_count()) * columns;
    let [codes, _] =
        matrix::launch(client, input, span, view, chosen, job.encoding, Layouts::Rows)?;
    Ok(codes.map(|codes| if beyond == 0 { codes } else { codes.offset_end(beyond as u64) }))
}

#[cfg(all(test, feature = "wgpu"))]
pub(crate) mod tests;
