//! Products with few rows, as in decoding: they take as long as it takes to read the right operand.
//!
//! So nothing is packed. Codes go from memory into registers, are decoded there, and multiplied by the rows of the left operand, which were
//! decoded before: for up to five rows at once, for more from the first-level cache. On the units with AVX-512 BF16, and the same on those
//! with AMX: what is added to a sum, and in which order, depends on the shape alone, and with scales of blocks on whether these are too small or too large to be
//! multiplied with each other.
#![allow(unsafe_code, reason = "vector instructions")]

mod columns;
mod kernel;
mod memory;
mod rows;

use crate::blocks::{Factors, Grid};
use crate::epilogue::Finish;
use crate::product::{Product, SumScales};
use crate::unit::Unit;

/// Rows up to which this is faster than packing, as measured on AMD Zen 4: where packing is cheap, the codes of the right operand being in
/// the cache and in rows, and where it is not.
///
/// AMX's tiles take over at the lower one: it is where vectors at 0.6 of the speed of f32, as on Xeons, are expected to take longer than
/// packing. That was calculated, not measured.
const ROWS: [usize; 2] = [16, 32];

/// Codes of a right operand that are not expected in the second-level cache.
const UNCACHED: usize = 1 << 22;

/// Whether this is the faster way for a product. Not where there is nothing to sum. Of blocks it knows scales, of columns and of whole units of codes, and no powers.
pub(crate) fn suits(unit: Unit, product: &Product<'_>) -> bool {
    let &Product { m, n, k, ref lhs, ref rhs, ref blocks, .. } = product;
    let packing_is_slow = rhs.transposed || n.saturating_mul(k) >= UNCACHED;
    let has_few_rows = m <= ROWS[usize::from(unit == Unit::Avx512Bf16 && packing_is_slow)];
    k > 0
        && has_few_rows
        && match blocks {
            Some(blocks) => {
                let is_whole = blocks.along.is_multiple_of(kernel::CODES) || blocks.along >= k;
                rhs.transposed && is_whole && have_factors(blocks)
            }
            None => [lhs, rhs].iter().all(|matrix| matches!(matrix.factors, Factors::Ones)),
        }
}

/// Whether the product of each two scales is a normal number: one factor of a sum.
fn have_factors(SumScales { lhs, rhs, .. }: &SumScales<'_>) -> bool {
    let [[low_lhs, high_lhs], [low_rhs, high_rhs]] = [lhs, rhs].map(Grid::range);
    (low_lhs * low_rhs).is_normal() && (high_lhs * high_rhs).is_normal()
}

/// # Safety
/// The CPU must have the instructions of [`Unit::Avx512Bf16`](crate::Unit).
pub(crate) unsafe fn run(product: &Product<'_>, finish: &Finish<'_>) {
    if product.batch == 0 || product.m == 0 || product.n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match product.rhs.transposed {
            true => columns::run(product, finish),
            false => rows::run(product, finish),
        }
    }
}
