//! Products in f32, on any CPU: both operands decoded, multiplied with the crate `gemm`.
#![allow(unsafe_code, reason = "the crate gemm takes pointers")]

use rayon::prelude::*;

use crate::epilogue::{Finish, Part, WIDTH};
use crate::packable::Packable;
use crate::product::Product;
use crate::share;

pub(crate) fn run<O: Packable>(product: &Product<'_, O>, finish: &Finish<'_>) {
    let &Product { batch, m, n, k, .. } = product;
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let threads = share::threads(m.saturating_mul(n).saturating_mul(k), share::IN_F32);
    let parallelism = match threads {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let mut sums = vec![0f32; m * n];
    for index in 0..batch {
        let [lhs, rhs] = [&product.lhs, &product.rhs].map(|of| of.matrix(index).decode());
        let ((lhs, [lhs_row, lhs_column]), (rhs, [rhs_row, rhs_column])) = (&lhs, &rhs);
        // SAFETY: `decode` gives as many numbers as the shapes have, with these strides; `sums` holds m × n.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                sums.as_mut_ptr(),
                1,
                n as isize,
                false,
                lhs.as_ptr(),
                *lhs_column,
                *lhs_row,
                rhs.as_ptr(),
                *rhs_column,
                *rhs_row,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
        let row = |(row, sums): (usize, &[f32])| {
            for (chunk, sums) in sums.chunks(WIDTH).enumerate() {
                let mut padded = [0f32; WIDTH];
                padded[..sums.len()].copy_from_slice(sums);
                let start = [row, chunk * WIDTH];
                finish.run(Part { batch: index, start, size: [1, sums.len()] }, &mut padded);
            }
        };
        match threads {
            1 => sums.chunks(n).enumerate().for_each(row),
            _ => sums.par_chunks(n).enumerate().for_each(row),
        }
    }
}
