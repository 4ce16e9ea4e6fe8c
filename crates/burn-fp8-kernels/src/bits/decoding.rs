//! From codes to numbers.

use burn_fp8_core::Fp8Format;
use cubecl::prelude::*;

use super::units::{INFINITY, QUIET_NAN, Quad};

/// The f32 bits of the numbers that code magnitudes (7 bits, nothing above) stand for.
#[cube]
pub(crate) fn decode(code: Quad, #[comptime] format: Fp8Format) -> Quad {
    let m = comptime!(format.mantissa_bits());
    let rebias = comptime!((127 - format.exponent_bias()) << 23).runtime();
    let normal = (code << Quad::new(comptime!(23 - m).runtime())) + Quad::new(rebias);
    // Subnormal numbers are their mantissa times a power of two: an exact conversion and an exact product.
    let unit = Vector::<f32, Const<4>>::new(comptime!(format.min_positive_subnormal()).runtime());
    let subnormal = Quad::reinterpret(Vector::<f32, Const<4>>::cast_from(code) * unit);
    let first_normal = Quad::new(comptime!(1u32 << m).runtime());
    let finite = select_many(code.less_than(first_normal), subnormal, normal);
    match format {
        Fp8Format::E4M3 => select_many(code.equal(Quad::new(0x7F)), Quad::new(QUIET_NAN), finite),
        Fp8Format::E5M2 => {
            let infinite = Quad::new(0x7C);
            let number = select_many(code.equal(infinite), Quad::new(INFINITY), finite);
            select_many(code.greater_than(infinite), Quad::new(QUIET_NAN), number)
        }
    }
}

/// The f32 bits of the numbers that the four codes of a word stand for, the first in its lowest byte.
#[cube]
pub(crate) fn decode_word(word: u32, #[comptime] format: Fp8Format) -> Quad {
    let mut codes = Quad::new(0u32);
    #[unroll]
    for i in 0..4usize {
        codes[i] = word >> comptime!(8 * i as u32).runtime();
    }
    let magnitude = decode(codes & Quad::new(0x7F), format);
    magnitude | ((codes & Quad::new(0x80)) << Quad::new(24))
}
