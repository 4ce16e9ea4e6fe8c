//! Sums of 13 fraction bits and fewer with AVX-512 and VNNI, for blocks of 16 and 32 products.
//!
//! Four of K lie in the four bytes of a lane of 32 bits, sixteen columns in the lanes of a vector. Exponents are added and compared as bytes, 64 at once. A
//! multiplication of bytes (`vpmaddubsw`) by a left operand with zeros in every other byte gives the products of the even, or odd, ones in 16 bits; these are shifted,
//! given their sign, and added in pairs (`vpdpwssd`).

use core::arch::x86_64::*;

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::Accumulator;

use super::pack::{Layout, Parts, ZERO, table};
use super::{Kernel, PanelScales, Segment, WIDTH};
use crate::memory::Line;

/// Codes of a row that a lane takes.
const QUAD: usize = 4;

/// Rows that are multiplied at once, so that columns are loaded once for them.
const TOGETHER: usize = 2;

/// The lowest exponent: of no product but zeros, and no sum of others.
const LOWEST: i8 = -60;

/// Significands of the left operand fit an i8, those of the right one a u8, and their product, in units of the 13th fraction bit, an i16.
const SHIFTS: [[u32; 2]; 3] = [[3, 4], [3, 5], [4, 4]];

pub(super) struct Avx512 {
    tables: [[Parts; 256]; 2],
    shifts: [u32; 2],
    quads: usize,
    /// Fraction bits that there are fewer than 13.
    fewer: i8,
    fraction: i32,
    /// The bits of an f32 that are kept of a sum.
    keep: i32,
}

/// Four codes of a row.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Left {
    exponents: i32,
    /// Significands of the even codes, then of the odd ones, each a byte beside a zero.
    significands: [i32; 2],
    /// Signs of the even codes, then of the odd ones, for all lanes of 16 bits.
    signs: [u32; 2],
}

/// Four codes of sixteen columns each.
pub(super) struct Right {
    significands: Vec<Line>,
    exponents: Vec<Line>,
    signs: Vec<[u32; 2]>,
}

pub(super) struct Rows {
    /// Row after row.
    quads: Vec<Left>,
    of_row: usize,
}

impl Avx512 {
    /// Where the CPU has the instructions, and the accumulator is one of those.
    pub(super) fn new(accumulator: Accumulator, formats: [Fp8Format; 2]) -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        let fits = matches!(accumulator.products, 16 | 32) && accumulator.fraction <= 13;
        let shifts = match formats {
            [Fp8Format::E4M3, Fp8Format::E4M3] => SHIFTS[0],
            [Fp8Format::E4M3, Fp8Format::E5M2] => SHIFTS[1],
            [Fp8Format::E5M2, Fp8Format::E4M3] => SHIFTS[2],
            _ => return None,
        };
        (has && fits).then(|| Self {
            tables: formats.map(table),
            shifts,
            quads: accumulator.products as usize / QUAD,
            fewer: 13 - accumulator.fraction as i8,
            fraction: accumulator.fraction as i32,
            keep: !((1 << (23 - accumulator.result)) - 1),
        })
    }
}

impl Kernel for Avx512 {
    type Left = Rows;
    type Right = Right;

    fn pack_left(&self, rows: &[&[u8]], layout: &Layout) -> Rows {
        let of_row = layout.length / QUAD;
        let empty = Left { exponents: i32::from_ne_bytes([ZERO as u8; 4]), ..Left::default() };
        let mut quads = vec![empty; rows.len() * of_row];
        for (row, quads) in rows.iter().zip(quads.chunks_mut(of_row.max(1))) {
            layout.place(row, |place, code| {
                let Parts { significand, exponent, is_negative } =
                    self.tables[0][usize::from(code)];
                let (quad, byte) = (&mut quads[place / QUAD], place % QUAD);
                let significand = u32::from(significand) << self.shifts[0];
                quad.significands[byte % 2] |= (significand << (8 * byte)) as i32;
                let other = !(0xFF << (8 * byte));
                quad.exponents = quad.exponents & other | i32::from(exponent as u8) << (8 * byte);
                // Of a lane's two words, the first is that of the lower code.
                let lanes = if byte < 2 { 0x5555_5555 } else { 0xAAAA_AAAA };
                quad.signs[byte % 2] |= if is_negative { lanes } else { 0 };
            });
        }
        Rows { quads, of_row }
    }

    fn pack_right(&self, columns: &[&[u8]], layout: &Layout) -> Right {
        let quads = layout.length / QUAD;
        let mut right = Right {
            significands: vec![Line([0; 64]); quads],
            exponents: vec![Line([ZERO as u8; 64]); quads],
            signs: vec![[0; 2]; quads],
        };
        for (column, codes) in columns.iter().enumerate() {
            layout.place(codes, |place, code| {
                let Parts { significand, exponent, is_negative } =
                    self.tables[1][usize::from(code)];
                let (quad, byte) = (place / QUAD, place % QUAD);
                right.significands[quad].0[column * QUAD + byte] = significand << self.shifts[1];
                right.exponents[quad].0[column * QUAD + byte] = exponent as u8;
                right.signs[quad][byte % 2] |= u32::from(is_negative) << (2 * column + byte / 2);
            });
        }
        right
    }

    fn part(
        &self,
        (left, right): (&Rows, &Right),
        segments: &[Segment],
        scales: &PanelScales<'_>,
        sums: &mut [[f32; WIDTH]],
    ) {
        for (pair, sums) in sums.chunks_mut(TOGETHER).enumerate() {
            let row = |row: usize| {
                let row = (pair * TOGETHER + row).min(pair * TOGETHER + sums.len() - 1);
                &left.quads[row * left.of_row..][..left.of_row]
            };
            let rows = [row(0), row(1)];
            let first = pair * TOGETHER;
            // SAFETY: `new` has found the instructions.
            let totals = unsafe {
                match self.quads {
                    8 => self.rows::<8>(rows, right, segments, scales, first),
                    _ => self.rows::<4>(rows, right, segments, scales, first),
                }
            };
            sums.iter_mut().zip(totals).for_each(|(sums, total)| *sums = total);
        }
    }
}

impl Avx512 {
    /// The sums of some rows with sixteen columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn rows<const Q: usize>(
        &self,
        rows: [&[Left]; TOGETHER],
        right: &Right,
        segments: &[Segment],
        scales: &PanelScales<'_>,
        first: usize,
    ) -> [[f32; WIDTH]; TOGETHER] {
        let mut totals = [_mm512_setzero_ps(); TOGETHER];
        for Segment { blocks, of_scales } in segments {
            let mut c = [_mm512_setzero_ps(); TOGETHER];
            for block in blocks.clone() {
                let quads = block * Q..(block + 1) * Q;
                let (significands, _) = right.significands[quads.clone()].as_chunks();
                let (exponents, _) = right.exponents[quads.clone()].as_chunks();
                let (signs, _) = right.signs[quads.clone()].as_chunks();
                let left = rows.map(|row| &row[quads.clone()].as_chunks::<Q>().0[0]);
                self.block(left, (&significands[0], &exponents[0], &signs[0]), &mut c);
            }
            for row in 0..TOGETHER {
                totals[row] = match scales {
                    PanelScales::Blocks { lhs, rhs, blocks } => {
                        // The last row may be there twice.
                        let lhs =
                            lhs.get((first + row) * blocks + of_scales).copied().unwrap_or(0.0);
                        // SAFETY: sixteen numbers.
                        let rhs = unsafe { _mm512_loadu_ps(rhs[*of_scales].as_ptr()) };
                        _mm512_fmadd_ps(
                            c[row],
                            _mm512_mul_ps(_mm512_set1_ps(lhs), rhs),
                            totals[row],
                        )
                    }
                    _ => _mm512_add_ps(totals[row], c[row]),
                };
            }
        }
        totals.map(|total| {
            let mut numbers = [0f32; WIDTH];
            // SAFETY: sixteen numbers.
            unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), total) };
            numbers
        })
    }

    /// Adds a block of products to the running sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn block<const Q: usize>(
        &self,
        left: [&[Left; Q]; TOGETHER],
        (significands, exponents, signs): (&[Line; Q], &[Line; Q], &[[u32; 2]; Q]),
        c: &mut [__m512; TOGETHER],
    ) {
        let zero = _mm512_setzero_si512();
        let mut largest = [_mm512_set1_epi8(LOWEST); TOGETHER];
        let mut of_products = [[zero; Q]; TOGETHER];
        for quad in 0..Q {
            let right = load(&exponents[quad]);
            for row in 0..TOGETHER {
                let sum = _mm512_add_epi8(right, _mm512_set1_epi32(left[row][quad].exponents));
                of_products[row][quad] = sum;
                largest[row] = _mm512_max_epi8(largest[row], sum);
            }
        }
        let bias = _mm512_set1_epi32(127);
        let every_byte = _mm512_set4_epi32(0x0C0C_0C0C, 0x0808_0808, 0x0404_0404, 0);
        let mut from = [zero; TOGETHER];
        let mut sums = [[zero; 2]; TOGETHER];
        let mut unit = [zero; TOGETHER];
        for row in 0..TOGETHER {
            let bits = _mm512_castps_si512(c[row]);
            let of_c = _mm512_and_si512(_mm512_srli_epi32::<23>(bits), _mm512_set1_epi32(0xFF));
            let of_c = _mm512_shuffle_epi8(_mm512_sub_epi32(of_c, bias), every_byte);
            let of_four = largest[row];
            let of_four = _mm512_max_epi8(of_four, _mm512_rol_epi32::<16>(of_four));
            let of_four = _mm512_max_epi8(of_four, _mm512_rol_epi32::<8>(of_four));
            let exponent = _mm512_max_epi8(of_four, of_c);
            from[row] = _mm512_add_epi8(exponent, _mm512_set1_epi8(self.fewer));
            // 2^(fraction − exponent) is what a unit is divided by.
            let down = _mm512_sub_epi32(
                _mm512_set1_epi32(self.fraction),
                _mm512_srai_epi32::<24>(exponent),
            );
            let power = _mm512_slli_epi32::<23>(_mm512_add_epi32(bias, down));
            sums[row][0] = _mm512_cvttps_epi32(_mm512_mul_ps(c[row], _mm512_castsi512_ps(power)));
            unit[row] = _mm512_slli_epi32::<23>(_mm512_sub_epi32(bias, down));
        }
        let (even, ones) = (_mm512_set1_epi16(0xFF), _mm512_set1_epi16(1));
        for quad in 0..Q {
            let right = load(&significands[quad]);
            for row in 0..TOGETHER {
                let distance = _mm512_sub_epi8(from[row], of_products[row][quad]);
                let distances =
                    [_mm512_and_si512(distance, even), _mm512_srli_epi16::<8>(distance)];
                let left = &left[row][quad];
                for half in 0..2 {
                    let product =
                        _mm512_maddubs_epi16(right, _mm512_set1_epi32(left.significands[half]));
                    let cut = _mm512_srlv_epi16(product, distances[half]);
                    let is_negative = left.signs[half] ^ signs[quad][half];
                    let term = _mm512_mask_sub_epi16(cut, is_negative, zero, cut);
                    sums[row][half] = _mm512_dpwssd_epi32(sums[row][half], term, ones);
                }
            }
        }
        let keep = _mm512_set1_epi32(self.keep);
        for row in 0..TOGETHER {
            // Below 2^24: exact.
            let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[row][0], sums[row][1]));
            let sum = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(sum), keep));
            c[row] = _mm512_mul_ps(sum, _mm512_castsi512_ps(unit[row]));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}
