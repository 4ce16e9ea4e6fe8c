//! Codes in bytes, four of K to a lane of 32 bits, sixteen columns to a line: what AVX-512 and AVX2 multiply.
//!
//! Exponents are added and compared as bytes. A multiplication of bytes (`vpmaddubsw`) by a left operand with zeros in every other byte gives the
//! products of the even, or odd, ones in 16 bits; these are shifted, given their sign, and added in pairs.

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::Accumulator;

use super::pack::{Layout, Parts, ZERO, table};
use crate::memory::Line;

/// Codes of a row that a lane takes.
const QUAD: usize = 4;

/// The lowest exponent: of no product but zeros, and no sum of others.
pub(super) const LOWEST: i8 = -60;

/// Significands of the left operand fit an i8, those of the right one a u8, and their product, in units of the 13th fraction bit, an i16.
const SHIFTS: [[u32; 2]; 3] = [[3, 4], [3, 5], [4, 4]];

/// What is the same in each block of an accumulator of 16 or 32 products and at most 13 fraction bits.
pub(super) struct Quads {
    tables: [[Parts; 256]; 2],
    shifts: [u32; 2],
    /// Of a block.
    pub(super) count: usize,
    /// Fraction bits that there are fewer than 13.
    pub(super) fewer: i8,
    pub(super) fraction: i32,
    /// The bits of an f32 that are kept of a sum.
    pub(super) keep: i32,
}

/// Four codes of a row.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) exponents: i32,
    /// Significands of the even codes, then of the odd ones, each a byte beside a zero.
    pub(super) significands: [i32; 2],
    /// Signs of the even codes, then of the odd ones, for all lanes of 16 bits.
    pub(super) lanes: [u32; 2],
    /// What turns the sign of a byte ±1.
    pub(super) turns: i32,
}

/// Rows of a left operand, one after the other.
pub(super) struct Rows {
    quads: Vec<Left>,
    of_row: usize,
}

/// Four codes of sixteen columns each, and the next four.
pub(super) struct Right {
    pub(super) significands: Vec<Line>,
    pub(super) exponents: Vec<Line>,
    /// Signs as masks of lanes of 16 bits: of the even codes, then of the odd ones.
    pub(super) lanes: Vec<[u32; 2]>,
    /// Signs as bytes ±1.
    pub(super) signs: Vec<Line>,
}

impl Rows {
    pub(super) fn row(&self, row: usize) -> &[Left] {
        &self.quads[row * self.of_row..][..self.of_row]
    }
}

impl Quads {
    /// Where the accumulator is one of those, and the formats ones that tensor cores multiply.
    pub(super) fn new(accumulator: Accumulator, formats: [Fp8Format; 2]) -> Option<Self> {
        let shifts = match formats {
            [Fp8Format::E4M3, Fp8Format::E4M3] => SHIFTS[0],
            [Fp8Format::E4M3, Fp8Format::E5M2] => SHIFTS[1],
            [Fp8Format::E5M2, Fp8Format::E4M3] => SHIFTS[2],
            _ => return None,
        };
        let Accumulator { products, fraction, result, .. } = accumulator;
        (matches!(products, 16 | 32) && fraction <= 13).then(|| Self {
            tables: formats.map(table),
            shifts,
            count: products as usize / QUAD,
            fewer: 13 - fraction as i8,
            fraction: fraction as i32,
            keep: !((1 << (23 - result)) - 1),
        })
    }

    pub(super) fn pack_left(&self, rows: &[&[u8]], layout: &Layout) -> Rows {
        let of_row = layout.length / QUAD;
        let exponents = i32::from_ne_bytes([ZERO as u8; QUAD]);
        let empty = Left { exponents, significands: [0; 2], lanes: [0; 2], turns: 0 };
        let mut quads = vec![empty; rows.len() * of_row];
        for (row, quads) in rows.iter().zip(quads.chunks_mut(of_row.max(1))) {
            layout.place(row, |place, code| {
                let Parts { significand, exponent, is_negative } =
                    self.tables[0][usize::from(code)];
                let (quad, byte) = (&mut quads[place / QUAD], place % QUAD);
                let at = |x: u8| i32::from(x) << (8 * byte);
                quad.significands[byte % 2] |= at(significand << self.shifts[0]);
                quad.exponents = quad.exponents & !at(0xFF) | at(exponent as u8);
                if is_negative {
                    // Of a lane's two words, the first is that of the lower code.
                    quad.lanes[byte % 2] |= if byte < 2 { 0x5555_5555 } else { 0xAAAA_AAAA };
                    quad.turns |= at(0xFE);
                }
            });
        }
        Rows { quads, of_row }
    }

    pub(super) fn pack_right(&self, columns: &[&[u8]], layout: &Layout) -> Right {
        let quads = layout.length / QUAD;
        let lines = |byte| vec![Line([byte; 64]); quads];
        let mut right = Right {
            significands: lines(0),
            exponents: lines(ZERO as u8),
            lanes: vec![[0; 2]; quads],
            signs: lines(1),
        };
        for (column, codes) in columns.iter().enumerate() {
            layout.place(codes, |place, code| {
                let Parts { significand, exponent, is_negative } =
                    self.tables[1][usize::from(code)];
                let (quad, byte) = (place / QUAD, place % QUAD);
                let at = column * QUAD + byte;
                right.significands[quad].0[at] = significand << self.shifts[1];
                right.exponents[quad].0[at] = exponent as u8;
                if is_negative {
                    right.lanes[quad][byte % 2] |= 1 << (2 * column + byte / 2);
                    right.signs[quad].0[at] = 0xFF;
                }
            });
        }
        right
    }
}
