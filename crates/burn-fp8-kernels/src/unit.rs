//! What all quantizing kernels do with sixteen bytes, or with four elements.

use cubecl::prelude::*;

use crate::bits::{self, Divisor, Encoding, INFINITY, Quad};
use crate::element::Element;

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
#[allow(clippy::collapsible_if, reason = "the outer one is decided when the kernel is compiled")]
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
    let quads = magnitudes.len().comptime();
    let mut encoded = Array::<Quad>::new(quads);
    #[unroll]
    for i in 0..quads {
        encoded[i] = bits::encode(*magnitudes.index(i), divisor, encoding);
    }
    if broken {
        #[unroll]
        for i in 0..quads {
            encoded[i] = bits::repair(encoded[i], *magnitudes.index(i), encoding);
        }
    }
    let mut codes = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..quads {
        codes.push(encoded[i]);
    }
    let mut amax = largest;
    if comptime!(measure) {
        if largest >= INFINITY {
            amax = bits::largest_finite(&magnitudes);
        }
    }
    Unit { codes, amax }
}

/// Words of packed codes, with their signs, from the first on.
#[cube]
pub(crate) fn packed<W: Size>(
    unit: &Unit,
    words: Quad,
    #[comptime] element: Element,
) -> Vector<u32, W> {
    let mut packed = Vector::<u32, W>::empty();
    #[unroll]
    for word in 0..W::value() {
        packed[word] = bits::pack(&unit.codes, word) | bits::code_signs(words, element, word);
    }
    packed
}

/// The bits of the numbers that the codes of a unit stand for, in the order of [`bits::magnitudes`].
#[cube]
pub(crate) fn value_quads(
    codes: &Sequence<Quad>,
    words: Quad,
    #[comptime] element: Element,
    #[comptime] encoding: Encoding,
) -> Sequence<Quad> {
    let signs = bits::signs(words, element);
    let mut quads = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..codes.len().comptime() {
        let magnitude = bits::decode(*codes.index(i) & Quad::new(0x7F), encoding.format);
        quads.push(magnitude | *signs.index(i));
    }
    quads
}
