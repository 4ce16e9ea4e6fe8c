//! What all quantizing kernels do with sixteen bytes, or with four elements.

use cubecl::prelude::*;

use crate::Element;
use crate::amax::largest_finite;
use crate::bits::{self, Divisor, Encoding, INFINITY, Quad};

/// Values that a kernel writes beside codes, or instead of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Values {
    /// As which type.
    pub(crate) element: Element,
    /// Times the scale, or as the codes stand for them.
    pub(crate) scaled: bool,
}

impl Default for Values {
    fn default() -> Self {
        Self { element: Element::F32, scaled: false }
    }
}

/// A unit in FP8.
#[derive(CubeType)]
pub(crate) struct Unit {
    /// The codes in their low bytes, without sign; in the order of [`bits::magnitudes`].
    pub(crate) codes: Sequence<Quad>,
    /// The largest finite magnitude.
    pub(crate) amax: u32,
}

/// Quantizes 16 bytes of a tensor.
#[cube]
pub(crate) fn quantize_unit(
    words: Quad,
    divisor: &Divisor,
    #[comptime] element: Element,
    #[comptime] encoding: Encoding,
    #[comptime] measure: bool,
) -> Unit {
    let magnitudes = bits::magnitudes(words, element);
    let largest = bits::largest(&magnitudes);
    let broken = largest >= comptime!(encoding.first_broken()).runtime();
    let mut codes = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..magnitudes.len().comptime() {
        let magnitude = *magnitudes.index(i);
        let mut code = bits::encode(magnitude, divisor, encoding);
        if broken {
            code = bits::repair(code, magnitude, encoding);
        }
        codes.push(code);
    }
    let mut amax = largest;
    if comptime!(measure) {
        if largest >= INFINITY {
            amax = largest_finite(&magnitudes);
        }
    }
    Unit { codes, amax }
}

/// The bits of the numbers that the codes of a unit stand for, in the order of [`bits::magnitudes`].
#[cube]
pub(crate) fn value_quads(
    codes: &Sequence<Quad>,
    words: Quad,
    scale: f32,
    #[comptime] element: Element,
    #[comptime] encoding: Encoding,
    #[comptime] values: Values,
) -> Sequence<Quad> {
    let signs = bits::signs(words, element);
    let mut quads = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..codes.len().comptime() {
        let magnitude = bits::decode(*codes.index(i) & Quad::new(0x7F), encoding.format);
        let value = magnitude | *signs.index(i);
        quads.push(bits::finish(value, scale, values.element, values.scaled));
    }
    quads
}

/// The scale, wherever it is.
#[cube]
pub(crate) fn scale_of(scale: &ComptimeOption<Array<f32>>, given: f32) -> f32 {
    #[comptime]
    match scale {
        ComptimeOption::Some(scale) => scale[0],
        ComptimeOption::None => given,
    }
}
