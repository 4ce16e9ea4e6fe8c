//! Elements as they lie in memory, four words at a time, and as numbers.

use cubecl::prelude::*;

use crate::element::Element;

/// Bits of f32.
const SIGN: u32 = 0x8000_0000;
pub(crate) const INFINITY: u32 = 0x7F80_0000;
pub(crate) const QUIET_NAN: u32 = 0x7FC0_0000;

/// Four u32: the bits of four f32, four codes, or 16 bytes of a tensor.
pub(crate) type Quad = Vector<u32, Const<4>>;

/// The magnitudes of the elements in 16 bytes, as f32 bits: one quad of f32; two of 16-bit elements, first those at even places.
#[cube]
pub(crate) fn magnitudes(words: Quad, #[comptime] element: Element) -> Sequence<Quad> {
    let mut quads = Sequence::<Quad>::new();
    if comptime!(element == Element::F32) {
        quads.push(words & Quad::new(0x7FFF_FFFF));
    } else {
        let pairs = words & Quad::new(0x7FFF_7FFF);
        if comptime!(element == Element::Bf16) {
            quads.push(pairs << Quad::new(16));
            quads.push(pairs & Quad::new(0xFFFF_0000));
        } else {
            quads.push(widen(pairs & Quad::new(0xFFFF)));
            quads.push(widen(pairs >> Quad::new(16)));
        }
    }
    quads
}

/// The f32 bits of f16 magnitudes, exactly. NaN stays NaN.
#[cube]
fn widen(half: Quad) -> Quad {
    let normal = (half << Quad::new(13)) + Quad::new(112 << 23);
    // In the mantissa of 1/2, whose last bit has the unit of f16 subnormals, and read off by an exact subtraction.
    let one_half = Quad::new(126 << 23);
    let sum = Vector::<f32, Const<4>>::reinterpret(one_half | half);
    let subnormal = sum - Vector::<f32, Const<4>>::reinterpret(one_half);
    let finite =
        select_many(half.less_than(Quad::new(0x400)), Quad::reinterpret(subnormal), normal);
    select_many(half.less_than(Quad::new(0x7C00)), finite, finite | Quad::new(INFINITY))
}

/// The signs of the elements in 16 bytes, each in the highest bit, in the order of [`magnitudes`].
#[cube]
pub(crate) fn signs(words: Quad, #[comptime] element: Element) -> Sequence<Quad> {
    let mut quads = Sequence::<Quad>::new();
    if comptime!(element == Element::F32) {
        quads.push(words & Quad::new(SIGN));
    } else {
        quads.push((words << Quad::new(16)) & Quad::new(SIGN));
        quads.push(words & Quad::new(SIGN));
    }
    quads
}

/// The element at a place of 16 bytes, out of quads in the order of [`magnitudes`].
#[cube]
fn lane(quads: &Sequence<Quad>, #[comptime] place: usize) -> u32 {
    let count = quads.len().comptime();
    let quad = quads.index(comptime!(place % count));
    quad[comptime!(place / count)]
}

/// The elements at four places of 16 bytes from this one on, out of quads in the order of [`magnitudes`].
#[cube]
pub(crate) fn four_of(quads: &Sequence<Quad>, #[comptime] first: usize) -> Quad {
    let mut four = Quad::new(0u32);
    #[unroll]
    for i in 0..4usize {
        four[i] = lane(quads, comptime!(first + i));
    }
    four
}

/// The largest of all.
#[cube]
pub(crate) fn largest(quads: &Sequence<Quad>) -> u32 {
    let mut quad = *quads.index(0usize);
    #[unroll]
    for i in 1usize..quads.len().comptime() {
        quad = max(quad, *quads.index(i));
    }
    max(max(quad[0], quad[1]), max(quad[2], quad[3]))
}

/// The largest of the magnitudes that are finite, 0 where none is.
#[cube]
pub(crate) fn largest_finite(magnitudes: &Sequence<Quad>) -> u32 {
    let mut finite = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..magnitudes.len().comptime() {
        let quad = *magnitudes.index(i);
        finite.push(select_many(quad.less_than(Quad::new(INFINITY)), quad, Quad::new(0u32)));
    }
    largest(&finite)
}

/// The signs of the elements at places `4 × word..` of 16 bytes as those of packed codes: the highest bit of each byte.
#[cube]
pub(crate) fn code_signs(
    words: Quad,
    #[comptime] element: Element,
    #[comptime] word: usize,
) -> u32 {
    if comptime!(element == Element::F32) {
        ((words[0] >> 24) & 0x80)
            | ((words[1] >> 16) & 0x8000)
            | ((words[2] >> 8) & 0x80_0000)
            | (words[3] & SIGN)
    } else {
        let first = words[comptime!(2 * word)];
        let second = words[comptime!(2 * word + 1)];
        ((first >> 8) & 0x80)
            | ((first >> 16) & 0x8000)
            | ((second << 8) & 0x80_0000)
            | (second & SIGN)
    }
}

/// The codes at places `4 × word..` in one word, the first in its lowest byte. Only the low bytes of codes are looked at.
#[cube]
pub(crate) fn pack(codes: &Sequence<Quad>, #[comptime] word: usize) -> u32 {
    (lane(codes, comptime!(4 * word)) & 0xFF)
        | ((lane(codes, comptime!(4 * word + 1)) & 0xFF) << 8)
        | ((lane(codes, comptime!(4 * word + 2)) & 0xFF) << 16)
        | (lane(codes, comptime!(4 * word + 3)) << 24)
}

/// The f32 bits, signs included, of four elements side by side: four words of f32, or two of 16-bit elements.
#[cube]
pub(crate) fn widen_four<W: Size>(words: Vector<u32, W>, #[comptime] element: Element) -> Quad {
    let mut quad = Quad::new(0u32);
    if comptime!(element == Element::F32) {
        #[unroll]
        for i in 0..4usize {
            quad[i] = words[i];
        }
        quad
    } else {
        #[unroll]
        for i in 0..2usize {
            quad[comptime!(2 * i)] = words[i] << 16;
            quad[comptime!(2 * i + 1)] = words[i] & 0xFFFF_0000u32;
        }
        if comptime!(element == Element::F16) {
            let magnitude = widen((quad & Quad::new(0x7FFF_0000)) >> Quad::new(16));
            magnitude | (quad & Quad::new(SIGN))
        } else {
            quad
        }
    }
}

/// The f32 bits, sign included, of the element at an index; for elements that do not lie side by side. `N` is 1.
#[cube]
pub(crate) fn read_element<N: Size>(
    words: &Array<Vector<u32, N>>,
    index: usize,
    #[comptime] element: Element,
) -> u32 {
    if comptime!(element == Element::F32) {
        let word = words[index];
        word[0]
    } else {
        let word = words[index / 2];
        let word = word[0];
        let half = (word >> (u32::cast_from(index % 2) * 16)) & 0xFFFF;
        if comptime!(element == Element::Bf16) {
            half << 16
        } else {
            let magnitude = widen(Quad::new(half & 0x7FFF));
            magnitude[0] | ((half & 0x8000) << 16)
        }
    }
}
