//! The same with AVX2, which shifts no words by numbers of their own: it multiplies by powers of two that it looks up, and keeps the upper half.

use core::arch::x86_64::*;

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::Accumulator;

use super::pack::Layout;
use super::quads::{LOWEST, Left, Quads, Right, Rows};
use super::{Kernel, PanelScales, Segment, WIDTH};
use crate::memory::Line;

pub(super) struct Avx2(Quads);

impl Avx2 {
    /// Where the CPU has the instructions, and the accumulator is one of those.
    pub(super) fn new(accumulator: Accumulator, formats: [Fp8Format; 2]) -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        Quads::new(accumulator, formats).filter(|_| has).map(Self)
    }
}

impl Kernel for Avx2 {
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
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `new` has found the instructions.
            *sums = unsafe {
                match self.0.count {
                    8 => self.row::<8>((row, left.row(row)), right, segments, scales),
                    _ => self.row::<4>((row, left.row(row)), right, segments, scales),
                }
            };
        }
    }
}

impl Avx2 {
    /// The sums of a row with sixteen columns, in two vectors.
    #[target_feature(enable = "avx2,fma")]
    fn row<const Q: usize>(
        &self,
        (row, left): (usize, &[Left]),
        right: &Right,
        segments: &[Segment],
        scales: &PanelScales<'_>,
    ) -> [f32; WIDTH] {
        let mut totals = [_mm256_setzero_ps(); 2];
        for Segment { blocks, of_scales } in segments {
            let mut c = [_mm256_setzero_ps(); 2];
            for block in blocks.clone() {
                let quads = block * Q..(block + 1) * Q;
                let left = &left[quads.clone()].as_chunks::<Q>().0[0];
                let of = |lines: &[Line]| -> *const Line { lines[quads.clone()].as_ptr() };
                let right = [of(&right.significands), of(&right.exponents), of(&right.signs)];
                for (half, c) in c.iter_mut().enumerate() {
                    // SAFETY: `Q` lines from each.
                    unsafe { self.block(left, right, half, c) };
                }
            }
            for half in 0..2 {
                totals[half] = match scales {
                    PanelScales::Blocks { lhs, rhs, blocks } => {
                        let lhs = _mm256_set1_ps(lhs[row * blocks + of_scales]);
                        let rhs = &rhs[*of_scales].as_chunks::<8>().0[half];
                        // SAFETY: eight numbers.
                        let rhs = unsafe { _mm256_loadu_ps(rhs.as_ptr()) };
                        _mm256_fmadd_ps(c[half], _mm256_mul_ps(lhs, rhs), totals[half])
                    }
                    _ => _mm256_add_ps(totals[half], c[half]),
                };
            }
        }
        let mut numbers = [0f32; WIDTH];
        for (total, numbers) in totals.into_iter().zip(numbers.as_chunks_mut::<8>().0) {
            // SAFETY: eight numbers.
            unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), total) };
        }
        numbers
    }

    /// Adds a block of products to the running sums of eight columns.
    ///
    /// # Safety
    /// `Q` lines must be readable from each pointer.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn block<const Q: usize>(
        &self,
        left: &[Left; Q],
        [significands, exponents, signs]: [*const Line; 3],
        half: usize,
        c: &mut __m256,
    ) {
        // SAFETY: the caller's promise: half a line.
        let load = |lines: *const Line, quad: usize| unsafe {
            _mm256_load_si256(lines.add(quad).cast::<__m256i>().add(half))
        };
        let mut largest = _mm256_set1_epi8(LOWEST);
        let mut of_products = [_mm256_setzero_si256(); Q];
        for quad in 0..Q {
            let sum =
                _mm256_add_epi8(load(exponents, quad), _mm256_set1_epi32(left[quad].exponents));
            of_products[quad] = sum;
            largest = _mm256_max_epi8(largest, sum);
        }
        let words = [_mm256_slli_epi32::<16>(largest), _mm256_srli_epi32::<16>(largest)];
        let largest = _mm256_max_epi8(largest, _mm256_or_si256(words[0], words[1]));
        let bytes = [_mm256_slli_epi16::<8>(largest), _mm256_srli_epi16::<8>(largest)];
        let largest = _mm256_max_epi8(largest, _mm256_or_si256(bytes[0], bytes[1]));
        let bias = _mm256_set1_epi32(127);
        let bits = _mm256_castps_si256(*c);
        let of_c = _mm256_and_si256(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(0xFF));
        let every_byte =
            _mm256_broadcastsi128_si256(_mm_set_epi32(0x0C0C_0C0C, 0x0808_0808, 0x0404_0404, 0));
        let of_c = _mm256_shuffle_epi8(_mm256_sub_epi32(of_c, bias), every_byte);
        let exponent = _mm256_max_epi8(largest, of_c);
        let from = _mm256_add_epi8(exponent, _mm256_set1_epi8(self.0.fewer));
        // 2^(fraction − exponent) is what a unit is divided by.
        let down =
            _mm256_sub_epi32(_mm256_set1_epi32(self.0.fraction), _mm256_srai_epi32::<24>(exponent));
        let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(bias, down));
        let of_c = _mm256_cvttps_epi32(_mm256_mul_ps(*c, _mm256_castsi256_ps(power)));
        let mut sums = [of_c, _mm256_setzero_si256()];

        // Bytes of 2^(15 − distance): the lower ones of 8 to 15, the upper ones of 0 to 7. From 16 on an index has its highest bit, which gives 0.
        const POWERS: i64 = 0x0102_0408_1020_4080;
        let lower = _mm256_broadcastsi128_si256(_mm_set_epi64x(POWERS, 0));
        let upper = _mm256_broadcastsi128_si256(_mm_set_epi64x(0, POWERS));
        let (odd, ones) = (_mm256_set1_epi16(0xFF00_u16 as i16), _mm256_set1_epi16(1));
        for (quad, left) in left.iter().enumerate() {
            let distance = _mm256_sub_epi8(from, of_products[quad]);
            let index = _mm256_adds_epu8(distance, _mm256_set1_epi8(0x70));
            let lower = _mm256_shuffle_epi8(lower, index);
            let upper = _mm256_shuffle_epi8(upper, index);
            let powers = [
                _mm256_blendv_epi8(lower, _mm256_slli_epi16::<8>(upper), odd),
                _mm256_blendv_epi8(_mm256_srli_epi16::<8>(lower), upper, odd),
            ];
            let sign = _mm256_xor_si256(load(signs, quad), _mm256_set1_epi32(left.turns));
            let signs = [_mm256_slli_epi16::<8>(sign), sign];
            let right = load(significands, quad);
            for half in 0..2 {
                let product =
                    _mm256_maddubs_epi16(right, _mm256_set1_epi32(left.significands[half]));
                let cut = _mm256_mulhi_epu16(_mm256_add_epi16(product, product), powers[half]);
                let term = _mm256_sign_epi16(cut, signs[half]);
                sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(term, ones));
            }
        }
        // Below 2^24: exact.
        let sum = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], sums[1]));
        let sum = _mm256_and_ps(sum, _mm256_castsi256_ps(_mm256_set1_epi32(self.0.keep)));
        let unit = _mm256_slli_epi32::<23>(_mm256_sub_epi32(bias, down));
        *c = _mm256_mul_ps(sum, _mm256_castsi256_ps(unit));
    }
}
