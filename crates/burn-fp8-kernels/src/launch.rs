//! What every launch needs: grids, addresses, buffers.

use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::{Handle, MemoryLayoutDescriptor, MemoryLayoutStrategy};

use crate::error::KernelError;

/// The units of every cube: a multiple of any plane size, and within WebGPU's limit.
pub(crate) const CUBE: u32 = 256;

/// The dimensions of every cube.
pub(crate) fn cube_dim() -> CubeDim {
    CubeDim::new_1d(CUBE)
}

/// A grid of at least `cubes` cubes within the limits of the device: kernels take the linear position and skip what is too much.
pub(crate) fn grid<R: Runtime>(client: &ComputeClient<R>, cubes: usize) -> CubeCount {
    let (x_limit, y_limit, _) = client.properties().hardware.max_cube_count;
    let [x_limit, y_limit] = [x_limit, y_limit].map(|limit| limit as usize);
    let x = cubes.min(x_limit);
    let y = cubes.div_ceil(x);
    let z = y.div_ceil(y_limit);
    CubeCount::Static(x as u32, y.min(y_limit) as u32, z as u32)
}

/// The addresses that indices up to `elements` need, with room for the steps of loops.
pub(crate) fn address_type<R: Runtime>(
    client: &ComputeClient<R>,
    elements: u64,
) -> Result<AddressType, KernelError> {
    if elements <= 1 << 31 {
        return Ok(AddressType::U32);
    }
    let needed = AddressType::U64;
    if client.properties().supports_address(needed) {
        Ok(needed)
    } else {
        Err(KernelError::TooLarge { elements, needed })
    }
}

/// A new buffer of u32 words.
///
/// Allocated in whole 16 bytes, which kernels may write, and handed out without those beyond `words`.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    handle: Handle,
    pub(crate) words: usize,
}

impl Words {
    pub(crate) fn new<R: Runtime>(client: &ComputeClient<R>, words: usize) -> Self {
        Self { handle: client.empty(words.next_multiple_of(4) * 4), words }
    }

    /// Several small buffers in one allocation.
    pub(crate) fn several<R: Runtime>(client: &ComputeClient<R>, words: &[usize]) -> Vec<Self> {
        let descriptor = |words: &usize| {
            let bytes = words.next_multiple_of(4) * 4;
            MemoryLayoutDescriptor::new(MemoryLayoutStrategy::Contiguous, [bytes].into(), 1)
        };
        let layouts = client.empty_tensors(words.iter().map(descriptor).collect());
        let buffers = layouts.into_iter().zip(words);
        buffers.map(|(layout, &words)| Self { handle: layout.memory, words }).collect()
    }

    /// For elements of `size` bytes.
    pub(crate) fn for_elements<R: Runtime>(
        client: &ComputeClient<R>,
        elements: usize,
        size: usize,
    ) -> Self {
        Self::new(client, (elements * size).div_ceil(4))
    }

    /// As an argument of a kernel, all of it.
    pub(crate) fn arg<R: Runtime>(&self) -> ArrayArg<R> {
        array(&self.handle)
    }

    /// The words that were asked for.
    pub(crate) fn into_handle(self) -> Handle {
        let beyond = self.words.next_multiple_of(4) - self.words;
        match beyond {
            0 => self.handle,
            _ => self.handle.offset_end(4 * beyond as u64),
        }
    }
}

/// A buffer as an argument of u32 words or of vectors of them.
pub(crate) fn array<R: Runtime>(handle: &Handle) -> ArrayArg<R> {
    // The last word may be half a pair of elements; buffers are allocated in larger steps.
    let words = handle.size_in_used().div_ceil(4) as usize;
    // SAFETY: The length is that of the buffer.
    #[allow(unsafe_code, reason = "CubeCL has no safe constructor")]
    unsafe {
        ArrayArg::from_raw_parts(handle.clone(), words)
    }
}
