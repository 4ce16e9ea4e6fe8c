//! Codes to numbers.

use burn_fp8_core::Fp8Format;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::bits::{self, Quad};
use crate::element::Element;
use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::scale::{scale_args, scale_of};
use crate::tensor::{Scalar, check_codes};
use crate::unit::Values;

/// The numbers that `len` codes stand for, as `output`: multiplied by the scale in f32, where there is one, and rounded once more
/// if `output` is narrower. NaN codes give NaN. One launch.
///
/// Codes are one byte each, in whole u32 words.
///
/// # Errors
/// If there are no codes, more than the buffer holds, or more than can be addressed; if the scale is not a scalar.
pub fn dequantize<R: Runtime>(
    client: &ComputeClient<R>,
    codes: &Handle,
    len: usize,
    format: Fp8Format,
    scale: Option<&Scalar>,
    output: Element,
) -> Result<Handle, KernelError> {
    if len == 0 {
        return Err(KernelError::Empty { shape: vec![0] });
    }
    let words = check_codes(codes, len)?;
    scale.map_or(Ok(()), Scalar::check)?;
    let address = address_type(client, len as u64)?;
    let values = Words::for_elements(client, len, output.size());
    let (scale_arg, given) = scale_args(scale.unwrap_or(&Scalar::Host(1.0)));
    // SAFETY: There are as many words of codes, and the output has room for a multiple of 16 bytes; words beyond are skipped.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        decode_words::launch_unchecked(
            client,
            grid(client, words.div_ceil(CUBE as usize)),
            cube_dim(),
            address,
            4 / output.per_word(),
            array(codes),
            scale_arg,
            values.arg(),
            given,
            words,
            format,
            Values { element: output, scaled: scale.is_some() },
        );
    }
    Ok(values.into_handle())
}

/// Four codes for each unit of a cube. `X` words are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
fn decode_words<X: Size>(
    codes: &Array<u32>,
    scale: &ComptimeOption<Array<f32>>,
    values: &mut Array<Vector<u32, X>>,
    given: f32,
    words: usize,
    #[comptime] format: Fp8Format,
    #[comptime] output: Values,
) {
    let position = ABSOLUTE_POS;
    if position < words {
        let scale = scale_of(scale, given);
        let value = bits::decode_word(codes[position], format);
        let mut quads = Sequence::<Quad>::new();
        quads.push(bits::finish(value, scale, output.element, output.scaled));
        let mut stored = Vector::<u32, X>::empty();
        #[unroll]
        for i in 0..X::value() {
            stored[i] = bits::output_word(&quads, i, output.element);
        }
        values[position] = stored;
    }
}
