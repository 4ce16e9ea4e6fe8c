//! Tensors of any layout, one code word at a time.

use cubecl::prelude::*;

use super::job::Job;
use crate::bits::{self, Quad};
use crate::element::Element;
use crate::launch::CUBE;
use crate::reduce::raise;
use crate::scale::scale_of;
use crate::strided::offset_of;
use crate::unit::{quantize_unit, value_quads};

/// Codes and values in row-major order, four elements for each unit of a cube. `X` words of values are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn quantize_elements<X: Size>(
    input: &Array<u32>,
    scale: &ComptimeOption<Array<f32>>,
    codes: &mut ComptimeOption<Array<u32>>,
    values: &mut ComptimeOption<Array<Vector<u32, X>>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    given: f32,
    elements: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    #[comptime] job: Job,
) {
    let position = ABSOLUTE_POS;
    let first = position * 4;
    let mut words = Quad::new(0u32);
    #[unroll]
    for i in 0..4usize {
        if first + i < elements {
            let index = offset_of(first + i, &sizes, &strides);
            words[i] = bits::read_element(input, index, job.element);
        }
    }
    let scale = scale_of(scale, given);
    let divisor = bits::divisor(scale, job.encoding.division);
    let quantized = quantize_unit(words, &divisor, Element::F32, job.encoding, job.measure);
    if first < elements {
        #[comptime]
        if let ComptimeOption::Some(codes) = codes {
            codes[position] = bits::pack(&quantized.codes, 0usize)
                | bits::code_signs(words, Element::F32, 0usize);
        }
        #[comptime]
        if let ComptimeOption::Some(values) = values {
            let of = comptime!(job.values.unwrap_or_default());
            let quads = value_quads(&quantized.codes, words, scale, Element::F32, job.encoding, of);
            let mut stored = Vector::<u32, X>::empty();
            #[unroll]
            for word in 0..X::value() {
                stored[word] = bits::output_word(&quads, word, of.element);
            }
            values[position] = stored;
        }
    }
    if comptime!(job.measure) {
        let mut values = SharedMemory::<u32>::new(comptime!(CUBE as usize));
        raise(amax, quantized.amax, &mut values);
    }
}
