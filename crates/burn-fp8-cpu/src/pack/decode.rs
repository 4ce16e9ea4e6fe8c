//! Codes as bf16 numbers, 64 at a time.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;

use burn_fp8_core::{Fp8Format, element};

/// The low and the high bytes of the bf16 numbers of a format's codes without sign: what byte permutations look up.
struct Table {
    low: [u8; 128],
    high: [u8; 128],
}

impl Table {
    const fn new(format: Fp8Format) -> Self {
        let mut table = Self { low: [0; 128], high: [0; 128] };
        let mut code = 0;
        while code < 128 {
            // The upper half of the f32 is the bf16: FP8 has fewer bits of mantissa.
            let bits = element::decode(code as u8, format).to_bits() >> 16;
            table.low[code] = bits as u8;
            table.high[code] = (bits >> 8) as u8;
            code += 1;
        }
        table
    }
}

static E4M3: Table = Table::new(Fp8Format::E4M3);
static E5M2: Table = Table::new(Fp8Format::E5M2);

/// The tables of a format in registers.
#[derive(Clone, Copy)]
pub(crate) struct Decoder {
    low: [__m512i; 2],
    high: [__m512i; 2],
}

impl Decoder {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn new(format: Fp8Format) -> Self {
        let table = match format {
            Fp8Format::E4M3 => &E4M3,
            Fp8Format::E5M2 => &E5M2,
        };
        Self { low: load_halves(&table.low), high: load_halves(&table.high) }
    }

    /// The bf16 numbers of 64 codes: of bytes 0 to 7 of each quarter, then of its bytes 8 to 15.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(crate) fn decode(self, codes: __m512i) -> [__m512i; 2] {
        // The permutation takes the lowest seven bits of each byte.
        let low = _mm512_permutex2var_epi8(self.low[0], codes, self.low[1]);
        let high = _mm512_permutex2var_epi8(self.high[0], codes, self.high[1]);
        // high | (codes & 0x80)
        let sign = _mm512_set1_epi8(-128);
        let high = _mm512_ternarylogic_epi32::<0xF8>(high, codes, sign);
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_halves(bytes: &[u8; 128]) -> [__m512i; 2] {
    // SAFETY: both halves are 64 bytes of the array.
    unsafe {
        let start = bytes.as_ptr();
        [_mm512_loadu_si512(start.cast()), _mm512_loadu_si512(start.add(64).cast())]
    }
}

/// Puts codes where the numbers of the first 32 are decoded first.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn in_order(codes: __m512i) -> __m512i {
    // Quarter q takes bytes 8q… and 32 + 8q….
    _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes)
}

/// # Safety
/// 32 numbers from `start` on must be inside of `panel`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store(panel: &mut [u16], start: usize, values: __m512i) {
    debug_assert!(start + 32 <= panel.len());
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_si512(panel.as_mut_ptr().add(start).cast(), values) };
}
