//! Tensors in rows of whole 16-byte units.

use cubecl::prelude::*;

use super::job::Job;
use crate::bits::{self, Quad};
use crate::launch::CUBE;
use crate::reduce::raise;
use crate::scale::scale_of;
use crate::strided::position;
use crate::unit::{quantize_unit, value_quads};

/// Loads in flight for each unit of a cube.
pub(super) const UNROLLED: usize = 4;

/// Codes and values in row-major order. `W` words of codes and `X` words of values are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn quantize_units<W: Size, X: Size>(
    input: &Array<Quad>,
    scale: &ComptimeOption<Array<f32>>,
    codes: &mut ComptimeOption<Array<Vector<u32, W>>>,
    values: &mut ComptimeOption<Array<Vector<u32, X>>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    given: f32,
    units: usize,
    columns: usize,
    pitch: usize,
    #[comptime] job: Job,
    #[comptime] pitched: bool,
) {
    let first = CUBE_POS * comptime!(UNROLLED * CUBE as usize).runtime() + UNIT_POS as usize;
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
    let scale = scale_of(scale, given);
    let divisor = bits::divisor(scale, job.encoding.division);
    let mut largest = 0u32;
    #[unroll]
    for i in 0..UNROLLED {
        let unit = first + comptime!(i * CUBE as usize).runtime();
        let words = *loaded.index(i);
        let quantized = quantize_unit(words, &divisor, job.element, job.encoding, job.measure);
        largest = max(largest, quantized.amax);
        if unit < units {
            #[comptime]
            if let ComptimeOption::Some(codes) = codes {
                let mut packed = Vector::<u32, W>::empty();
                #[unroll]
                for word in 0..W::value() {
                    packed[word] = bits::pack(&quantized.codes, word)
                        | bits::code_signs(words, job.element, word);
                }
                codes[unit] = packed;
            }
            #[comptime]
            if let ComptimeOption::Some(values) = values {
                let of = comptime!(job.values.unwrap_or_default());
                let quads =
                    value_quads(&quantized.codes, words, scale, job.element, job.encoding, of);
                let width = X::value();
                let stores = comptime!(job.element.per_unit() / of.element.per_word() / width);
                #[unroll]
                for store in 0..stores {
                    let mut stored = Vector::<u32, X>::empty();
                    #[unroll]
                    for i in 0..width {
                        let word = comptime!(store * width + i);
                        stored[i] = bits::output_word(&quads, word, of.element);
                    }
                    values[unit * stores + store] = stored;
                }
            }
        }
    }
    if comptime!(job.measure) {
        let mut values = SharedMemory::<u32>::new(comptime!(CUBE as usize));
        raise(amax, largest, &mut values);
    }
}
