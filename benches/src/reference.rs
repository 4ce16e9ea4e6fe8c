//! The references: what memory and vector units of this machine do with the simplest loops, in the same style as the core's own.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Elements per piece: one piece per thread, so that `memcpy` may choose stores that bypass the cache.
fn piece(elements: usize) -> usize {
    elements.div_ceil(rayon::current_num_threads()).max(1)
}

/// `memcpy`.
pub fn copy(x: &[f32], y: &mut [f32]) {
    let piece = piece(x.len());
    y.par_chunks_mut(piece).zip(x.par_chunks(piece)).for_each(|(y, x)| y.copy_from_slice(x));
}

/// The triad of the STREAM benchmark: `a = b × s + c`.
pub fn triad(b: &[f32], s: f32, c: &[f32], a: &mut [f32]) {
    let piece = piece(a.len());
    a.par_chunks_mut(piece)
        .zip(b.par_chunks(piece).zip(c.par_chunks(piece)))
        .for_each(|(a, (b, c))| Arch::new().dispatch(Triad { b, s, c, a }));
}

/// The sum of a slice, in 32 partial sums: the fastest of 32, 64, 128 and 256 on Zen 5.
pub fn sum(x: &[f32]) -> f32 {
    x.par_chunks(piece(x.len())).map(|x| Arch::new().dispatch(Sum { x })).sum()
}

struct Triad<'a> {
    b: &'a [f32],
    s: f32,
    c: &'a [f32],
    a: &'a mut [f32],
}

impl WithSimd for Triad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((a, b), c) in self.a.iter_mut().zip(self.b).zip(self.c) {
            *a = b * self.s + c;
        }
    }
}

struct Sum<'a> {
    x: &'a [f32],
}

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        // A float sum may not be reordered: independent partial sums are what lets it be vectorized.
        let (chunks, rest) = self.x.as_chunks::<32>();
        let mut sums = [0.0f32; 32];
        for chunk in chunks {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *sum += x;
            }
        }
        sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
    }
}
