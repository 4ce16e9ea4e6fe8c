//! Codes as the kernels want them: in the order of their chains, split into significand, exponent and sign.

use core::ops::Range;

use burn_fp8_core::Fp8Format;

/// The exponent of a zero. Twice it is the lowest number of a byte, and it is below what any other product has.
pub(super) const ZERO: i8 = -64;

/// Below this one is the exponent of a product with a zero: the largest one of E5M2 is 15.
pub(super) const NO_PRODUCT: i32 = ZERO as i32 + 16;

/// Where the codes of a row go.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pieces: Vec<(Range<usize>, usize)>,
    /// All of them, with zeros after the last block of a chain.
    pub(super) length: usize,
}

impl Layout {
    /// The pieces of a chain, which begins there.
    pub(super) fn push(&mut self, chain: Vec<Range<usize>>, mut start: usize) {
        for piece in chain {
            let length = piece.len();
            self.pieces.push((piece, start));
            start += length;
        }
    }

    /// Each code of a row, and its place.
    pub(super) fn place(&self, row: &[u8], mut put: impl FnMut(usize, u8)) {
        for (piece, start) in &self.pieces {
            for (at, code) in row[piece.clone()].iter().enumerate() {
                put(start + at, *code);
            }
        }
    }
}

/// What a code is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// With the hidden bit: at most 15. 0 for what is no finite number, which [`Special`](super::special::Special) has an eye on.
    pub(super) significand: u8,
    /// That of the format's smallest normal number in subnormal ones; [`ZERO`] of a zero.
    pub(super) exponent: i8,
    pub(super) is_negative: bool,
}

/// The parts of all codes of a format.
pub(super) fn table(format: Fp8Format) -> [Parts; 256] {
    let mantissa = format.mantissa_bits();
    core::array::from_fn(|code| {
        let (magnitude, is_negative) = (code as u8 & 0x7F, code > 0x7F);
        let exponent = (magnitude >> mantissa) as i8;
        let fraction = magnitude & ((1 << mantissa) - 1);
        let is_finite = !format.is_nan(magnitude) && !format.is_infinite(magnitude);
        if magnitude == 0 || !is_finite {
            return Parts { significand: 0, exponent: ZERO, is_negative };
        }
        let significand = fraction | u8::from(exponent > 0) << mantissa;
        let exponent = exponent.max(1) - format.exponent_bias() as i8;
        Parts { significand, exponent, is_negative }
    })
}
