//! The largest magnitude of a tensor.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, INFINITY, QUIET_NAN, Quad};
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::{Dims, Reads, Source, has, read_several};
use crate::reduce::cube_max;
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
    Ok(amax.into_handle())
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
    let address = address_type(client, span.max(dims.elements() as u64))?;
    let reads = Reads::new(input, dims);
    // Enough cubes to fill any device, few enough that one cube reduces their maxima in a few steps.
    let cubes = reads.cubes().clamp(1, 1024);
    let mut buffers = Words::several(client, &[[cubes].as_slice(), &[1; N]].concat()).into_iter();
    let partials = buffers.next().expect("as many as were asked for");
    let words = core::array::from_fn(|_| buffers.next().expect("as many as were asked for"));
    // SAFETY: `Input::check` holds the tensor to its buffer, and nothing is read beyond the end; there is a partial for each cube, and
    // cubes beyond are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        amax_of_cubes::launch_unchecked(
            client,
            grid(client, cubes),
            cube_dim(),
            address,
            reads.reading.words(),
            reads.handle(),
            reads.arg(),
            unless.map(array).into(),
            partials.arg(),
            cubes,
            non_finite,
        );
    }
    Ok((partials, words))
}

/// The bits of a given amax, 0 where there is none.
#[cube]
pub(crate) fn given_bits(from: &ComptimeOption<Array<u32>>) -> u32 {
    #[comptime]
    match from {
        ComptimeOption::Some(from) => from[0],
        ComptimeOption::None => 0u32.runtime(),
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn amax_of_cubes<N: Size>(
    input: &Array<Vector<u32, N>>,
    source: Source,
    unless: &ComptimeOption<Array<u32>>,
    partials: &mut Array<u32>,
    cubes: usize,
    #[comptime] non_finite: NonFinite,
) {
    let cube = CUBE_POS;
    if cube < cubes && given_bits(unless) & 0x7FFF_FFFF == 0 {
        let reading = comptime!(source.reading);
        let step = comptime!(reading.unrolled() * CUBE as usize).runtime();
        let mut amax = 0u32;
        let mut first = cube * step + UNIT_POS as usize;
        while has(&source, first) {
            let loaded = read_several(input, &source, first);
            #[unroll]
            for i in 0..comptime!(reading.unrolled()) {
                let magnitudes = bits::magnitudes(*loaded.index(i), comptime!(reading.element()));
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
