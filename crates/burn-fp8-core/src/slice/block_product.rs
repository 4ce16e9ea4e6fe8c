//! Products with codes whose blocks have scales, decoded while they are multiplied.

use super::blocks::Blocks;
use super::product::{self, Matrix, Product};
use super::{check_product, same_length};
use crate::Fp8Format;

/// Multiplications that are worth waking other threads for.
#[cfg(feature = "rayon")]
const WORTHWHILE: usize = 1 << 18;

/// The product of `x` `[M, K]` and the numbers that `codes` `[K, N]` stand for, times the scales of their blocks: `y` `[M, N]`, in f32, all row by row.
///
/// The products of a block are summed first, then multiplied by its scale. With the feature `rayon` it runs on rayon's current pool; results
/// do not depend on the number of threads.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` and the blocks give it.
pub fn matmul_block_codes(
    x: &[f32],
    codes: &[u8],
    [m, k, n]: [usize; 3],
    block: [usize; 2],
    scales: &[f32],
    format: Fp8Format,
    y: &mut [f32],
) {
    check_product(x, codes, [m, k, n], y);
    if m * n == 0 {
        return;
    }
    let [down, across] = Blocks { columns: n, block }.grid(codes.len());
    same_length(("scales", scales.len()), ("the grid", down * across));
    let part = |first: usize, width: usize| {
        let mut y = vec![0.0; m * width];
        let (mut partial, mut rows) = (vec![0.0; m * width], vec![]);
        for (index, start) in (0..k).step_by(block[0]).enumerate() {
            let depth = block[0].min(k - start);
            rows.clear();
            for row in x.chunks_exact(k) {
                rows.extend_from_slice(&row[start..start + depth]);
            }
            partial.fill(0.0);
            let codes = &codes[start * n..];
            let matrix = Matrix { codes, columns: n, first, width, format };
            product::run(Product { x: &rows, depth, matrix, y: &mut partial });
            let scales = &scales[index * across..][..across];
            for (y, partial) in y.chunks_exact_mut(width).zip(partial.chunks_exact(width)) {
                add_scaled(y, partial, scales, first, block[1]);
            }
        }
        y
    };
    #[cfg(feature = "rayon")]
    {
        use rayon::prelude::*;
        // Whole cache lines of codes.
        let columns = n.div_ceil(rayon::current_num_threads()).next_multiple_of(64);
        if columns < n && m.saturating_mul(codes.len()) >= WORTHWHILE {
            let parts: Vec<_> = (0..n)
                .into_par_iter()
                .step_by(columns)
                .map(|first| (first, part(first, columns.min(n - first))))
                .collect();
            for (first, part) in parts {
                let width = part.len() / m;
                for (part, y) in part.chunks_exact(width).zip(y.chunks_exact_mut(n)) {
                    y[first..first + width].copy_from_slice(part);
                }
            }
            return;
        }
    }
    y.copy_from_slice(&part(0, n));
}

/// Adds products of a block of rows, times the scales of their columns, which begin at column `first`.
fn add_scaled(y: &mut [f32], partial: &[f32], scales: &[f32], first: usize, width: usize) {
    let mut column = first;
    let (mut y, mut partial) = (y, partial);
    while !y.is_empty() {
        let count = (width - column % width).min(y.len());
        let (now, later) = y.split_at_mut(count);
        let (products, others) = partial.split_at(count);
        let scale = scales[column / width];
        now.iter_mut().zip(products).for_each(|(y, product)| *y += product * scale);
        (y, partial, column) = (later, others, column + count);
    }
}
