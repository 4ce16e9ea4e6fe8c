//! Tensors to codes and to the values of codes.

use burn_fp8_core::{Fp8Format, Layouts};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Encoding, Quad};
use crate::error::KernelError;
use crate::grid::{Scales, ScalesLaunch};
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Dims, Reads, Source, View, has, read_several};
use crate::matrix;
use crate::reduce::raise;
use crate::scale::{Chosen, ScaleRule, choose};
use crate::tensor::{Input, Scalar};
use crate::unit::{packed, quantize_unit, value_quads};

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

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) encoding: Encoding,
    /// Whether the kernel raises an amax to that of the tensor.
    pub(crate) measure: bool,
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
    let span = input.check()?;
    let encoding = Encoding::new(client, format, rule.overflow());
    let [codes, values] = match (outputs, transposed(input)) {
        (Outputs::Codes, Some(view)) => {
            [Some(in_tiles(client, input, view, &chosen, encoding)?), None]
        }
        _ => row_major(client, input, span, &chosen, encoding, outputs)?,
    };
    Ok(Quantized { codes, values, scale: chosen.scale, amax: chosen.amax })
}

/// Codes and values, as far as they are wanted.
fn row_major<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    span: u64,
    chosen: &Chosen,
    encoding: Encoding,
    outputs: Outputs,
) -> Result<[Option<Handle>; 2], KernelError> {
    let elements = input.elements();
    let address = address_type(client, span.max(elements as u64))?;
    let codes = outputs != Outputs::Values;
    let values = outputs != Outputs::Codes;
    let new = |size| Words::for_elements(client, elements, size);
    let written = [codes.then(|| new(1)), values.then(|| new(4))];
    let job = Job { encoding, measure: chosen.measure };
    let reads = Reads::new(input, Dims::new(input.shape, input.strides));
    let amax = chosen.amax.as_ref().filter(|_| chosen.measure);
    let outputs = written.each_ref().map(Option::as_ref);
    launch(client, &reads, (chosen.scale.scales(), amax), outputs, job, address);
    Ok(written.map(|words| words.map(Words::into_handle)))
}

/// Writes codes and values in row-major order: there is room for those of all reads.
pub(crate) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    reads: &Reads<'_>,
    (scales, amax): (ScalesLaunch<R>, Option<&Handle>),
    [codes, values]: [Option<&Words>; 2],
    job: Job,
    address: AddressType,
) {
    let reading = reads.reading;
    // SAFETY: `Input::check` holds the tensor to its buffer, and nothing is read beyond the end; outputs have room for a multiple of 16
    // bytes, and what a read makes takes no more.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        quantize_reads::launch_unchecked(
            client,
            grid(client, reads.cubes()),
            cube_dim(),
            address,
            reading.words(),
            reading.element().per_unit() / 4,
            reads.handle(),
            reads.arg(),
            scales,
            codes.map(Words::arg).into(),
            values.map(Words::arg).into(),
            amax.map(array).into(),
            job,
        );
    }
}

/// Codes and values in row-major order. `W` words of codes are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
fn quantize_reads<N: Size, W: Size>(
    input: &Array<Vector<u32, N>>,
    source: Source,
    scales: Scales,
    codes: &mut ComptimeOption<Array<Vector<u32, W>>>,
    values: &mut ComptimeOption<Array<Quad>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    #[comptime] job: Job,
) {
    let (unrolled, element) = comptime!((source.reading.unrolled(), source.reading.element()));
    let first = CUBE_POS * comptime!(unrolled * CUBE as usize).runtime() + UNIT_POS as usize;
    let loaded = read_several(input, &source, first);
    // Scales of blocks come with one read at a time.
    let divisor = scales.divisor(first * 4, source.count, job.encoding.division);
    let mut largest = 0u32;
    #[unroll]
    for i in 0..unrolled {
        let position = first + comptime!(i * CUBE as usize).runtime();
        let words = *loaded.index(i);
        let quantized = quantize_unit(words, &divisor, element, job.encoding, job.measure);
        largest = max(largest, quantized.amax);
        if has(&source, position) {
            #[comptime]
            if let ComptimeOption::Some(codes) = codes {
                codes[position] = packed(&quantized, words, element);
            }
            #[comptime]
            if let ComptimeOption::Some(values) = values {
                let quads = value_quads(&quantized.codes, words, element, job.encoding);
                let stores = comptime!(element.per_unit() / 4);
                #[unroll]
                for store in 0..stores {
                    values[position * stores + store] = bits::four_of(&quads, comptime!(4 * store));
                }
            }
        }
    }
    if comptime!(job.measure) {
        let mut values = SharedMemory::<u32>::new(comptime!(CUBE as usize));
        raise(amax, largest, &mut values);
    }
}

/// A transposed matrix whose rows need no padding: the kernel of matrices reads it along its columns.
fn transposed(input: &Input<'_>) -> Option<View> {
    let view = View::new(input);
    let suits = view.padded()[1] == view.columns.0
        && view.columns_lie_side_by_side()
        && view.transposed().in_units(input);
    suits.then_some(view)
}

/// The codes of such a matrix.
fn in_tiles<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    view: View,
    chosen: &Chosen,
    encoding: Encoding,
) -> Result<Handle, KernelError> {
    let beyond = (view.padded()[0] - view.row_count()) * view.columns.0;
    let [codes, _] = matrix::launch(client, input, view, chosen, encoding, Layouts::Rows)?;
    let codes = codes.expect("codes were asked for");
    Ok(if beyond == 0 { codes } else { codes.offset_end(beyond as u64) })
}
