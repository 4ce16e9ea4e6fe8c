//! The epilogue of a product of values: both scales.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::Quad;
use crate::element::Element;
use crate::error::KernelError;
use crate::grid::Scales;
use crate::launch::{CUBE, Words, address_type, cube_dim, grid};
use crate::layout::{Dims, Reads, Source, has, read};
use crate::tensor::{Input, Scalar};

/// An f32 tensor times both scales, f32, in row-major order. One launch.
///
/// The scales are multiplied with each other first, in f32; or one after the other with the tensor, where their product is no
/// normal number: [`burn_fp8_core::scale::of_product`].
///
/// # Errors
/// If the tensor is empty, not f32, or cannot be addressed; if a scale is not a scalar.
pub fn rescale<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    scales: [&Scalar; 2],
) -> Result<Handle, KernelError> {
    let span = input.check()?;
    if input.element != Element::F32 {
        return Err(KernelError::Element { element: input.element });
    }
    for scale in scales {
        scale.check()?;
    }
    let elements = input.elements();
    let address = address_type(client, span.max(elements as u64))?;
    let rescaled = Words::new(client, elements);
    let reads = Reads::new(input, Dims::new(input.shape, input.strides));
    let [lhs, rhs] = scales.map(Scalar::scales);
    // SAFETY: `Input::check` holds the tensor to its buffer, and nothing is read beyond the end; the output has room for a multiple of
    // 16 bytes, which four elements take.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        rescale_four::launch_unchecked(
            client,
            grid(client, elements.div_ceil(4 * CUBE as usize)),
            cube_dim(),
            address,
            reads.reading.words(),
            reads.handle(),
            reads.arg(),
            lhs,
            rhs,
            rescaled.arg(),
        );
    }
    Ok(rescaled.into_handle())
}

/// Four elements for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
fn rescale_four<N: Size>(
    input: &Array<Vector<u32, N>>,
    source: Source,
    lhs: Scales,
    rhs: Scales,
    output: &mut Array<Quad>,
) {
    let position = ABSOLUTE_POS;
    if has(&source, position) {
        output[position] = scaled(read(input, &source, position), lhs.one(), rhs.one());
    }
}

/// [`burn_fp8_core::scale::of_product`], applied.
#[cube]
fn scaled(words: Quad, lhs: f32, rhs: f32) -> Quad {
    let product = lhs * rhs;
    let exponent = (u32::reinterpret(product) >> 23) & 0xFF;
    let normal = exponent != 0 && exponent != 0xFF;
    let first = select(normal, product, lhs);
    let second = select(normal, 1.0f32, rhs);
    let x = Vector::<f32, Const<4>>::reinterpret(words);
    let x = x * Vector::<f32, Const<4>>::new(first);
    Quad::reinterpret(x * Vector::<f32, Const<4>>::new(second))
}
