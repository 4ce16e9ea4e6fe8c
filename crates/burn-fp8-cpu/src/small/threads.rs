//! How many threads and tasks a product is worth, and how far ahead of them memory is read.

use super::kernel;
use crate::product::Product;

/// Codes times rows that are worth waking other threads for: some microseconds.
const WORTHWHILE: usize = 1 << 19;

/// Tasks for each thread, so that one that starts late does not keep the others waiting.
const TASKS: usize = 4;

/// Bytes that are read ahead, at least.
pub(super) const AHEAD: usize = 16 << 10;

/// Threads for a product, and how many tasks they want.
pub(super) fn threads(&Product { batch, m, n, k, .. }: &Product<'_>) -> (usize, usize) {
    let work = batch.saturating_mul(n).saturating_mul(k).saturating_mul(m.div_ceil(kernel::FUSED));
    let threads = if work < WORTHWHILE { 1 } else { rayon::current_num_threads() };
    (threads, if threads == 1 { 1 } else { TASKS * threads })
}
