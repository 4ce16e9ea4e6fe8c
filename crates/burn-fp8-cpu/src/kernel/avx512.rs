//! AVX-512 BF16: dot products of pairs, with all sums in registers.
#![allow(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;

use super::{Kernel, Size};
use crate::epilogue::WIDTH;
use crate::product::STEP;

/// Rows whose sums fit into registers: 28 vectors of sums, two of the right panel, one of the left.
const ROWS: usize = 14;

/// A thread with AVX-512 BF16.
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU must have AVX-512 F and BF16.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl Kernel for Avx512 {
    const DEPTH: usize = 512;
    const TASK: [usize; 2] = [256, 256];
    const SUMS: usize = ROWS;

    fn panel(rows: usize) -> usize {
        // Panels of about the same height: a low one would wait for its own sums.
        rows.div_ceil(rows.div_ceil(ROWS).max(1))
    }

    fn multiply(
        &mut self,
        left: &[u16],
        right: &[u16],
        size: Size,
        sums: &mut [f32],
        accumulate: bool,
    ) {
        assert!(left.len() >= size.rows * size.steps * STEP);
        assert!(right.len() >= size.steps * STEP * WIDTH);
        assert!(sums.len() >= size.rows * WIDTH);
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match size.rows {
                    // SAFETY: the instructions are promised; the lengths were asserted.
                    $($rows => unsafe { multiply::<$rows>(left, right, size.steps, sums, accumulate) },)*
                    rows => unreachable!("{rows} rows in a panel"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }
}

/// # Safety
/// `left` must hold `R` rows of `steps` · 32 numbers, `right` `steps` · 32 rows of 32, `sums` `R` rows of 32.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply<const R: usize>(
    left: &[u16],
    right: &[u16],
    steps: usize,
    sums: &mut [f32],
    accumulate: bool,
) {
    const PAIRS: usize = STEP / 2;
    let (mut left, mut right) = (left.as_ptr().cast::<i32>(), right.as_ptr().cast::<__m512i>());
    let stored = sums.as_mut_ptr();
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    if accumulate {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row `row` of `R`, 32 numbers.
            unsafe {
                let stored = stored.add(row * WIDTH);
                *sums = [_mm512_loadu_ps(stored), _mm512_loadu_ps(stored.add(16))];
            }
        }
    }
    for _ in 0..steps {
        for pair in 0..PAIRS {
            // SAFETY: the pair is inside of this step of both panels. All bit patterns are bf16 numbers.
            unsafe {
                let columns = [right.add(2 * pair), right.add(2 * pair + 1)];
                let columns = columns.map(|vector| vector.cast::<__m512bh>().read_unaligned());
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = left.add(row * PAIRS + pair).read_unaligned();
                    let x: __m512bh = core::mem::transmute::<__m512i, _>(_mm512_set1_epi32(x));
                    sums[0] = _mm512_dpbf16_ps(sums[0], x, columns[0]);
                    sums[1] = _mm512_dpbf16_ps(sums[1], x, columns[1]);
                }
            }
        }
        // SAFETY: to the next step, or the end of the panels.
        unsafe {
            left = left.add(R * PAIRS);
            right = right.add(2 * PAIRS);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: row `row` of `R`, 32 numbers.
        unsafe {
            let stored = stored.add(row * WIDTH);
            _mm512_storeu_ps(stored, sums[0]);
            _mm512_storeu_ps(stored.add(16), sums[1]);
        }
    }
}
