//! How much work is worth waking other threads for.

/// Multiplications in f32, or numbers to convert.
pub(crate) const IN_F32: usize = 1 << 18;

/// Multiplications on a unit.
#[cfg(target_arch = "x86_64")]
pub(crate) const ON_UNITS: usize = 1 << 21;

/// Codes times rows of products with few rows: some microseconds.
#[cfg(target_arch = "x86_64")]
pub(crate) const OF_FEW_ROWS: usize = 1 << 19;

/// Threads for so much work, where there is enough.
pub(crate) fn threads(work: usize, enough: usize) -> usize {
    if work < enough { 1 } else { rayon::current_num_threads() }
}
