//! Whether dot products of bf16 are faster than fused f32 multiplications on this CPU: some are microcoded or run on one port only.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;
use core::hint::black_box;
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;

/// How much faster they must be. Between what was measured on Xeons, 0.6, and on AMD, 2.
const ENOUGH: f64 = 1.2;

/// Instructions a run: some microseconds, too short for most interruptions.
const ROUNDS: usize = 1000;

/// Sums that do not wait for each other, more than the latency of either instruction.
const CHAINS: usize = 12;

pub(super) fn is_worthwhile() -> bool {
    ratio() >= ENOUGH
}

/// Multiplications a second in bf16 over those in f32: the best of some runs of each, taken in turns. Measured once.
pub(super) fn ratio() -> f64 {
    static RATIO: OnceLock<f64> = OnceLock::new();
    *RATIO.get_or_init(|| {
        let mut best = [Duration::MAX; 2];
        for _ in 0..10 {
            for (best, run) in best.iter_mut().zip([dot_products, fused]) {
                let start = Instant::now();
                // SAFETY: asked for only where `avx512` has found both instruction sets.
                black_box(unsafe { run() });
                *best = (*best).min(start.elapsed());
            }
        }
        2.0 * best[1].as_secs_f64() / best[0].as_secs_f64()
    })
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn dot_products() -> f32 {
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    let x = black_box(_mm512_set1_epi32(0x3F80_3F80));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            // SAFETY: both types are 512 bits without invalid ones.
            let x: __m512bh = unsafe { core::mem::transmute(x) };
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    total(sums)
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn fused() -> f32 {
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    let x = black_box(_mm512_set1_ps(1.0));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(x, x, *sum);
        }
    }
    total(sums)
}

#[target_feature(enable = "avx512f")]
fn total(sums: [__m512; CHAINS]) -> f32 {
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}
