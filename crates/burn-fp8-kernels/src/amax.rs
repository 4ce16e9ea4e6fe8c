//! The largest magnitude of a tensor.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, INFINITY, Quad};
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Dims, Units};
use crate::reduce::cube_max;
use crate::scale;
use crate::strided::{self, offset_of};
use crate::{Element, Input, KernelError};

/// What becomes of elements that are infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NonFinite {
    /// They do not count: the amax is finite, 0 where nothing is.
    Excluded,
    /// As `max(abs(x))` of numpy and JAX: NaN where there is a NaN, else infinity where there is one.
    Propagated,
}

/// The largest magnitude of a tensor: one f32 on the device. The same bits whatever the order of execution. Two launches.
///
/// A zero amax is positive, a NaN is the quiet one without sign.
///
/// # Errors
/// If the tensor is empty, or cannot be addressed.
pub fn amax<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    non_finite: NonFinite,
) -> Result<Handle, KernelError> {
    let partials = measure(client, input, non_finite, None)?;
    Ok(scale::amax_of_partials(client, &partials))
}

/// The maximum of every cube, as the bits of magnitudes: NaN is larger than infinity. One launch.
///
/// Where `unless` is not zero, nothing is read nor written.
pub(crate) fn measure<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    non_finite: NonFinite,
    unless: Option<&Handle>,
) -> Result<Words, KernelError> {
    let span = input.check()?;
    let dims = Dims::in_memory_order(input.shape, input.strides);
    let offset = input.handle.offset_start.unwrap_or(0);
    let address = address_type(client, span.max(dims.elements() as u64))?;
    let unless = || unless.map(array).into();
    let partials;
    match dims.as_units(input.element, offset) {
        Some(units) => {
            let Units { columns, pitch, .. } = units;
            partials = Words::new(client, cubes(units.count().div_ceil(UNROLLED * CUBE as usize)));
            // SAFETY: `Input::check` holds the tensor to its buffer; units beyond `units.count()` are skipped; there is a partial
            // for each cube, and cubes beyond are skipped.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                amax_units::launch_unchecked(
                    client,
                    grid(client, partials.words),
                    cube_dim(),
                    address,
                    array(input.handle),
                    unless(),
                    partials.arg(),
                    units.count(),
                    columns,
                    pitch,
                    partials.words,
                    input.element,
                    units.is_pitched(),
                    non_finite,
                );
            }
        }
        None => {
            let elements = dims.elements();
            partials = Words::new(client, cubes(elements.div_ceil(UNROLLED * CUBE as usize)));
            let (sizes, strides) = strided::args(&dims);
            // SAFETY: As above, for elements.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                amax_elements::launch_unchecked(
                    client,
                    grid(client, partials.words),
                    cube_dim(),
                    address,
                    array(input.handle),
                    unless(),
                    partials.arg(),
                    elements,
                    sizes,
                    strides,
                    partials.words,
                    input.element,
                    non_finite,
                );
            }
        }
    }
    Ok(partials)
}

/// Loads in flight for each unit.
const UNROLLED: usize = 4;

/// Enough cubes to fill any device, few enough that one cube reduces their maxima in a few steps.
fn cubes(wanted: usize) -> usize {
    wanted.clamp(1, 1024)
}

/// Whether nothing is to be done: a given amax is not zero.
#[cube]
pub(crate) fn is_given(amax: &ComptimeOption<Array<f32>>) -> bool {
    #[comptime]
    match amax {
        ComptimeOption::Some(amax) => u32::reinterpret(amax[0]) & 0x7FFF_FFFF != 0,
        ComptimeOption::None => false.runtime(),
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn amax_units(
    input: &Array<Quad>,
    unless: &ComptimeOption<Array<f32>>,
    partials: &mut Array<u32>,
    units: usize,
    columns: usize,
    pitch: usize,
    cubes: usize,
    #[comptime] element: Element,
    #[comptime] pitched: bool,
    #[comptime] non_finite: NonFinite,
) {
    let cube = CUBE_POS;
    if cube < cubes && !is_given(unless) {
        let step = comptime!(UNROLLED * CUBE as usize).runtime();
        let mut amax = 0u32;
        let mut first = cube * step + UNIT_POS as usize;
        while first < units {
            let mut loaded = Sequence::<Quad>::new();
            #[unroll]
            for i in 0..UNROLLED {
                let unit = first + comptime!(i * CUBE as usize).runtime();
                let mut words = Quad::new(0u32);
                if unit < units {
                    words = input[position(unit, columns, pitch, pitched)];
                }
                loaded.push(words);
            }
            #[unroll]
            for i in 0..UNROLLED {
                let magnitudes = bits::magnitudes(*loaded.index(i), element);
                amax = max(amax, counted(&magnitudes, non_finite));
            }
            first += cubes * step;
        }
        let amax = cube_max(amax);
        if UNIT_POS == 0 {
            partials[cube] = amax;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn amax_elements(
    input: &Array<u32>,
    unless: &ComptimeOption<Array<f32>>,
    partials: &mut Array<u32>,
    elements: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    cubes: usize,
    #[comptime] element: Element,
    #[comptime] non_finite: NonFinite,
) {
    let cube = CUBE_POS;
    if cube < cubes && !is_given(unless) {
        let step = CUBE as usize;
        let mut amax = 0u32;
        let mut i = cube * step + UNIT_POS as usize;
        while i < elements {
            let index = offset_of(i, &sizes, &strides);
            let magnitude = bits::read_element(input, index, element) & 0x7FFF_FFFF;
            if comptime!(non_finite == NonFinite::Propagated) {
                amax = max(amax, magnitude);
            } else {
                amax = max(amax, select(magnitude < INFINITY, magnitude, 0));
            }
            i += cubes * step;
        }
        let amax = cube_max(amax);
        if UNIT_POS == 0 {
            partials[cube] = amax;
        }
    }
}

/// Where a unit lies.
#[cube]
pub(crate) fn position(
    unit: usize,
    columns: usize,
    pitch: usize,
    #[comptime] pitched: bool,
) -> usize {
    if comptime!(pitched) { (unit / columns) * pitch + unit % columns } else { unit }
}

/// The largest of some magnitudes, or of those that are finite. The rare case costs a branch that is not taken.
#[cube]
fn counted(magnitudes: &Sequence<Quad>, #[comptime] non_finite: NonFinite) -> u32 {
    let mut largest = bits::largest(magnitudes);
    if comptime!(non_finite == NonFinite::Excluded) {
        if largest >= INFINITY {
            largest = largest_finite(magnitudes);
        }
    }
    largest
}

/// The largest of the magnitudes that are finite, 0 where none is.
#[cube]
pub(crate) fn largest_finite(magnitudes: &Sequence<Quad>) -> u32 {
    let mut finite = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..magnitudes.len().comptime() {
        let quad = *magnitudes.index(i);
        finite.push(select_many(quad.less_than(Quad::new(INFINITY)), quad, Quad::new(0u32)));
    }
    bits::largest(&finite)
}
