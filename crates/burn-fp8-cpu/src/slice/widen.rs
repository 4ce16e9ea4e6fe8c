//! Vectors of f16 as f32, by the instruction that some CPUs have for it.

use burn_fp8_core::element;
use half::f16;

/// Elements that are converted at once.
pub const VECTOR: usize = 16;

/// What converts.
pub trait Widen: Copy {
    /// Whether it has an instruction for f16.
    const HAS_F16: bool;

    /// The numbers as f32, exactly.
    fn f16(self, x: &[f16; VECTOR]) -> [f32; VECTOR];
}

/// Arithmetic on each value.
#[derive(Clone, Copy)]
pub struct Unaided;

impl Widen for Unaided {
    const HAS_F16: bool = false;

    #[inline(always)]
    fn f16(self, x: &[f16; VECTOR]) -> [f32; VECTOR] {
        x.map(element::f16_to_f32)
    }
}

#[cfg(target_arch = "x86_64")]
impl Widen for pulp::x86::V4 {
    const HAS_F16: bool = true;

    #[inline(always)]
    fn f16(self, x: &[f16; VECTOR]) -> [f32; VECTOR] {
        let mut bits = [0u16; VECTOR];
        for (bits, x) in bits.iter_mut().zip(x) {
            *bits = x.to_bits();
        }
        pulp::cast(self.avx512f._mm512_cvtph_ps(pulp::cast(bits)))
    }
}
