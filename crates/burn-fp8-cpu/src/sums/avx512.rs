//! Sums of 13 fraction bits and fewer with AVX-512 and VNNI, for blocks of 16 and 32 products.

use core::arch::x86_64::*;

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::Accumulator;

use super::pack::Layout;
use super::quads::{LOWEST, Left, Quads, Right, Rows};
use super::{Kernel, PanelScales, Segment, WIDTH};
use crate::memory::Line;

/// Rows that are multiplied at once, so that columns are loaded once for them.
const TOGETHER: usize = 2;

pub(super) struct Avx512(Quads);

impl Avx512 {
    /// Where the CPU has the instructions, and the accumulator is one of those.
    pub(super) fn new(accumulator: Accumulator, formats: [Fp8Format; 2]) -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        Quads::new(accumulator, formats).filter(|_| has).map(Self)
    }
}

impl Kernel for Avx512 {
    type Left = Rows;
    type Right = Right;

    fn pack_left(&self, rows: &[&[u8]], layout: &Layout) -> Rows {
        self.0.pack_left(rows, layout)
    }

    fn pack_right(&self, columns: &[&[u8]], layout: &Layout) -> Right {
        self.0.pack_right(columns, layout)
    }

    fn part(
        &self,
        (left, right): (&Rows, &Right),
        segments: &[Segment],
        scales: &PanelScales<'_>,
        sums: &mut [[f32; WIDTH]],
    ) {
        for (pair, sums) in sums.chunks_mut(TOGETHER).enumerate() {
            let first = pair * TOGETHER;
            // The last row may be there twice.
            let rows = [0, 1].map(|row| left.row((first + row).min(first + sums.len() - 1)));
            // SAFETY: `new` has found the instructions.
            let totals = unsafe {
                match self.0.count {
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
                let (lanes, _) = right.lanes[quads.clone()].as_chunks();
                let left = rows.map(|row| &row[quads.clone()].as_chunks::<Q>().0[0]);
                self.block(left, (&significands[0], &exponents[0], &lanes[0]), &mut c);
            }
            for row in 0..TOGETHER {
                totals[row] = match scales {
                    PanelScales::Blocks { lhs, rhs, blocks } => {
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
        (significands, exponents, lanes): (&[Line; Q], &[Line; Q], &[[u32; 2]; Q]),
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
            from[row] = _mm512_add_epi8(exponent, _mm512_set1_epi8(self.0.fewer));
            // 2^(fraction − exponent) is what a unit is divided by.
            let down = _mm512_sub_epi32(
                _mm512_set1_epi32(self.0.fraction),
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
                    let is_negative = left.lanes[half] ^ lanes[quad][half];
                    let term = _mm512_mask_sub_epi16(cut, is_negative, zero, cut);
                    sums[row][half] = _mm512_dpwssd_epi32(sums[row][half], term, ones);
                }
            }
        }
        let keep = _mm512_set1_epi32(self.0.keep);
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
