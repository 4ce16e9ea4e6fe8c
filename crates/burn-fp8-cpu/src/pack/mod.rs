//! Blocks of codes as panels of bf16, which units multiply.
//!
//! | panel | of       | layout                                                                     |
//! |-------|----------|----------------------------------------------------------------------------|
//! | left  | R rows   | `[K/32][R][32]`: 32 elements of a row, then those of the next row          |
//! | right | 32 columns | `[K/2][32][2]`: two elements of a column, then those of the next column  |
//!
//! K is padded to a multiple of 32 with zeros, columns to a multiple of 32 with anything, rows not at all. AMX loads both as tiles, 16 rows
//! of 64 bytes each; AVX-512 BF16 broadcasts pairs of the left panel against 16 columns of the right one.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod shift;
mod table;
#[cfg(target_arch = "x86_64")]
mod transpose;

use core::ops::Range;

pub(crate) use table::table;

use crate::codes::Codes;

/// K of panels is a multiple of this.
pub(crate) const STEP: usize = 32;

/// Columns of a right panel.
pub(crate) const COLUMNS: usize = 32;

/// Packs rows of a matrix into left panels of `panel` rows, the last of the rows that are left.
pub(crate) fn left(
    matrix: &Codes<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    panel: usize,
    panels: &mut [u16],
) {
    let table = table(matrix.format);
    let steps = depth.len().div_ceil(STEP);
    let panels = panels.chunks_mut(panel * steps * STEP);
    for (first, panel_out) in rows.clone().step_by(panel).zip(panels) {
        let rows = first..rows.end.min(first + panel);
        for step in 0..steps {
            for (r, row) in rows.clone().enumerate() {
                let out = &mut panel_out[(step * rows.len() + r) * STEP..][..STEP];
                for (k, out) in (depth.start + step * STEP..).zip(out) {
                    let code = if k < depth.end { matrix.at(row, k) } else { 0 };
                    *out = table.values[usize::from(code)];
                }
            }
        }
    }
}

/// Packs columns of a matrix into right panels.
pub(crate) fn right(
    matrix: &Codes<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    panels: &mut [u16],
) {
    let table = table(matrix.format);
    let padded = depth.len().next_multiple_of(STEP);
    let panels = panels.chunks_mut(padded * COLUMNS);
    for (first, panel_out) in columns.clone().step_by(COLUMNS).zip(panels) {
        for (pair, out) in panel_out[..padded * COLUMNS].chunks_exact_mut(2 * COLUMNS).enumerate() {
            for (column, out) in (first..).zip(out.chunks_exact_mut(2)) {
                for (k, out) in (depth.start + 2 * pair..).zip(out) {
                    let inside = k < depth.end && column < columns.end;
                    let code = if inside { matrix.at(k, column) } else { 0 };
                    *out = table.values[usize::from(code)];
                }
            }
        }
    }
}
