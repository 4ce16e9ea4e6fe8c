//! The largest magnitude of a tensor.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, INFINITY, QUIET_NAN, Quad};
use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Dims, Units};
use crate::reduce::cube_max;
use crate::strided::{self, offset_of, position};
use crate::tensor::Input;

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
    let (partials, [amax]) = measure(client, input, non_finite, None)?;
    Ok(amax_of_partials(client, &partials, amax))
}

/// The maximum of every cube, as the bits of magnitudes: NaN is larger than infinity. One launch.
///
/// Where `unless` is not zero, nothing is read nor written. With `N` words for the kernel that comes next, which nothing was written
/// to.
pub(crate) fn measure<R: Runtime, const N: usize>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    non_finite: NonFinite,
    unless: Option<&Handle>,
) -> Result<(Words, [Words; N]), KernelError> {
    let span = input.check()?;
    let dims = Dims::in_memory_order(input.shape, input.strides);
    let offset = input.handle.offset_start.unwrap_or(0);
    let address = address_type(client, span.max(dims.elements() as u64))?;
    let unless = unless.map(array).into();
    let units = dims.as_units(input.element, offset);
    let steps = units.map_or_else(|| dims.elements(), Units::count);
    let cubes = cubes(steps.div_ceil(UNROLLED * CUBE as usize));
    let mut buffers = Words::several(client, &[[cubes].as_slice(), &[1; N]].concat()).into_iter();
    let partials = buffers.next().expect("as many as were asked for");
    let words = core::array::from_fn(|_| buffers.next().expect("as many as were asked for"));
    match units {
        Some(units) => {
            let Units { columns, pitch, .. } = units;
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
                    unless,
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
                    unless,
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
    Ok((partials, words))
}

/// The maximum of the cubes of [`measure`], put into `amax`: one f32.
fn amax_of_partials<R: Runtime>(
    client: &ComputeClient<R>,
    partials: &Words,
    amax: Words,
) -> Handle {
    // SAFETY: One cube, which reads the partials that there are and writes one word.
    #[allow(unsafe_code, reason = "indices are in bounds by construction")]
    unsafe {
        amax_from_partials::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            cube_dim(),
            partials.arg(),
            amax.arg(),
            partials.words,
        );
    }
    amax.into_handle()
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

/// The largest of some magnitudes, or of those that are finite. The rare case costs a branch that is not taken.
#[cube]
#[allow(clippy::collapsible_if, reason = "the outer one is decided when the kernel is compiled")]
pub(crate) fn counted(magnitudes: &Sequence<Quad>, #[comptime] non_finite: NonFinite) -> u32 {
    let mut largest = bits::largest(magnitudes);
    if comptime!(non_finite == NonFinite::Excluded) {
        if largest >= INFINITY {
            largest = bits::largest_finite(magnitudes);
        }
    }
    largest
}

#[cube(launch_unchecked)]
fn amax_from_partials(partials: &Array<u32>, amax: &mut Array<u32>, count: usize) {
    let bits = cube_max(largest_partial(partials, count));
    if UNIT_POS == 0 {
        amax[0] = select(bits > INFINITY, QUIET_NAN, bits);
    }
}

/// What a unit of a cube that reduces the partials of [`measure`] finds of them.
#[cube]
pub(crate) fn largest_partial(partials: &Array<u32>, count: usize) -> u32 {
    let mut largest = 0u32;
    let mut i = UNIT_POS as usize;
    while i < count {
        largest = max(largest, partials[i]);
        i += CUBE as usize;
    }
    largest
}
