//! From f32 to the element types of outputs.

use cubecl::prelude::*;

use super::encoding::magic;
use super::units::{INFINITY, Quad, SIGN, lane};
use crate::element::Element;

/// The bits of f32 numbers, sign included, as an element type, in the low bits: rounded to nearest, ties to even, to infinity
/// beyond the largest number. NaN stays NaN.
#[cube]
pub(crate) fn narrow(bits: Quad, #[comptime] element: Element) -> Quad {
    match element {
        Element::F32 => bits,
        Element::Bf16 => {
            let odd = (bits >> Quad::new(16)) & Quad::new(1);
            let rounded = (bits + odd + Quad::new(0x7FFF)) >> Quad::new(16);
            let magnitude = bits & Quad::new(0x7FFF_FFFF);
            let nan = (bits >> Quad::new(16)) | Quad::new(0x40);
            select_many(magnitude.greater_than(Quad::new(INFINITY)), nan, rounded)
        }
        Element::F16 => {
            let magnitude = bits & Quad::new(0x7FFF_FFFF);
            // 65536 is rounded to the code of infinity, and so is what is nearer to it than to the largest number.
            let clipped = min(magnitude, Quad::new(143 << 23));
            let exponent = max(clipped & Quad::new(INFINITY), Quad::new(113 << 23));
            // The rounding of `encode`, with the parameters of f16.
            let power = Vector::<f32, Const<4>>::reinterpret(exponent);
            let factor = Vector::<f32, Const<4>>::new(comptime!(magic(10, 5, 15)).runtime());
            let sum = power * factor + Vector::<f32, Const<4>>::reinterpret(clipped);
            let rounded =
                (Quad::reinterpret(sum) + (exponent >> Quad::new(13))) & Quad::new(0x7FFF);
            let is_nan = magnitude.greater_than(Quad::new(INFINITY));
            let half = select_many(is_nan, Quad::new(0x7E00), rounded);
            half | ((bits & Quad::new(SIGN)) >> Quad::new(16))
        }
    }
}

/// Words of output from the one with this number on, out of quads in the order of `magnitudes`.
#[cube]
pub(crate) fn output_words<X: Size>(
    quads: &Sequence<Quad>,
    #[comptime] first: usize,
    #[comptime] element: Element,
) -> Vector<u32, X> {
    let mut words = Vector::<u32, X>::empty();
    #[unroll]
    for i in 0..X::value() {
        let word = comptime!(first + i);
        words[i] = if comptime!(element == Element::F32) {
            lane(quads, word)
        } else {
            lane(quads, comptime!(2 * word)) | (lane(quads, comptime!(2 * word + 1)) << 16)
        };
    }
    words
}
