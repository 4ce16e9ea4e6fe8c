//! The epilogue of a product of values: both scales, and the type of the output.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Quad};
use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::layout::Dims;
use crate::scale::{scale_args, scale_of};
use crate::strided::{self, offset_of, position};
use crate::tensor::{Input, Scalar};

/// An f32 tensor times both scales, as `output`, in row-major order. One launch.
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
    output: Element,
) -> Result<Handle, KernelError> {
    let span = input.check()?;
    if input.element != Element::F32 {
        return Err(KernelError::Element { element: input.element });
    }
    for scale in scales {
        scale.check()?;
    }
    let elements = input.elements();
    let dims = Dims::new(input.shape, input.strides);
    let address = address_type(client, span.max(elements as u64))?;
    let rescaled = Words::for_elements(client, elements, output.size());
    let [(lhs, lhs_given), (rhs, rhs_given)] = scales.map(scale_args);
    match dims.as_units(Element::F32, input.handle.offset_start.unwrap_or(0)) {
        Some(units) => {
            // SAFETY: `Input::check` holds the tensor to its buffer; units beyond `units.count()` are skipped, and the output was
            // made for all of those before.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                rescale_units::launch_unchecked(
                    client,
                    grid(client, units.count().div_ceil(CUBE as usize)),
                    cube_dim(),
                    address,
                    4 / output.per_word(),
                    array(input.handle),
                    lhs,
                    rhs,
                    rescaled.arg(),
                    lhs_given,
                    rhs_given,
                    units.count(),
                    units.columns,
                    units.pitch,
                    output,
                    units.is_pitched(),
                );
            }
        }
        None => {
            let (sizes, strides) = strided::args(&dims);
            // SAFETY: `Input::check` holds the tensor to its buffer; elements beyond the last are skipped; the output has room for
            // a multiple of 16 bytes, and four elements take 16 at most.
            #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
            unsafe {
                rescale_elements::launch_unchecked(
                    client,
                    grid(client, elements.div_ceil(4 * CUBE as usize)),
                    cube_dim(),
                    address,
                    4 / output.per_word(),
                    array(input.handle),
                    lhs,
                    rhs,
                    rescaled.arg(),
                    lhs_given,
                    rhs_given,
                    elements,
                    sizes,
                    strides,
                    output,
                );
            }
        }
    }
    Ok(rescaled.into_handle())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rescale_units<X: Size>(
    input: &Array<Quad>,
    lhs: &ComptimeOption<Array<f32>>,
    rhs: &ComptimeOption<Array<f32>>,
    output: &mut Array<Vector<u32, X>>,
    lhs_given: f32,
    rhs_given: f32,
    units: usize,
    columns: usize,
    pitch: usize,
    #[comptime] element: Element,
    #[comptime] pitched: bool,
) {
    let unit = ABSOLUTE_POS;
    if unit < units {
        let words = input[position(unit, columns, pitch, pitched)];
        let (lhs, rhs) = (scale_of(lhs, lhs_given), scale_of(rhs, rhs_given));
        output[unit] = stored::<X>(scaled(words, lhs, rhs), element);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rescale_elements<X: Size>(
    input: &Array<u32>,
    lhs: &ComptimeOption<Array<f32>>,
    rhs: &ComptimeOption<Array<f32>>,
    output: &mut Array<Vector<u32, X>>,
    lhs_given: f32,
    rhs_given: f32,
    elements: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    #[comptime] element: Element,
) {
    let unit = ABSOLUTE_POS;
    let first = unit * 4;
    if first < elements {
        let mut words = Quad::new(0u32);
        #[unroll]
        for i in 0..4usize {
            if first + i < elements {
                words[i] = input[offset_of(first + i, &sizes, &strides)];
            }
        }
        let (lhs, rhs) = (scale_of(lhs, lhs_given), scale_of(rhs, rhs_given));
        output[unit] = stored::<X>(scaled(words, lhs, rhs), element);
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

#[cube]
fn stored<X: Size>(bits: Quad, #[comptime] element: Element) -> Vector<u32, X> {
    let mut quads = Sequence::<Quad>::new();
    quads.push(bits::finish(bits, 1.0f32, element, false));
    let mut stored = Vector::<u32, X>::empty();
    #[unroll]
    for i in 0..X::value() {
        stored[i] = bits::output_word(&quads, i, element);
    }
    stored
}
