//! Products in strips, on several threads.

use core::ops::Range;

use rayon::prelude::*;

use crate::share::IN_F32;

/// Numbers of a cache line.
const LINE: usize = 16;

/// Zeros, so many from the place on that is returned too: there a cache line begins, which vectors do not cross then.
pub(super) fn lines(count: usize) -> (Vec<f32>, usize) {
    let room = vec![0.0; count + LINE];
    let first = room.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    (room, first)
}

/// Runs `work` on strips of rows of a matrix `[N, K]`, several of them at a time, for its product with `M` rows: it writes `[M, rows]`.
pub(super) fn in_strips(
    [m, k, n]: [usize; 3],
    height: usize,
    y: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let threads = rayon::current_num_threads();
    // Several for each thread: one that starts late does not keep the others waiting.
    let rows = n.div_ceil(4 * threads).next_multiple_of(height);
    if threads > 1 && rows < n && m.saturating_mul(n * k) >= IN_F32 {
        if m == 1 {
            let strips = y.par_chunks_mut(rows).with_max_len(1).enumerate();
            strips.for_each(|(index, y)| work(index * rows..index * rows + y.len(), y));
            return;
        }
        let strips = (0..n.div_ceil(rows)).into_par_iter().with_max_len(1).map(|index| {
            let rows = index * rows..n.min((index + 1) * rows);
            let mut y = vec![0.0; m * rows.len()];
            work(rows, &mut y);
            y
        });
        let strips: Vec<Vec<f32>> = strips.collect();
        let join = |(row, y): (usize, &mut [f32])| {
            for (y, strip) in y.chunks_mut(rows).zip(&strips) {
                y.copy_from_slice(&strip[row * y.len()..][..y.len()]);
            }
        };
        match m * n < IN_F32 {
            true => y.chunks_exact_mut(n).enumerate().for_each(join),
            false => y.par_chunks_exact_mut(n).enumerate().for_each(join),
        }
        return;
    }
    work(0..n, y);
}

/// Runs `work` on portions of `x` and of `y`, of which there are as many, several at a time where there is much.
pub(super) fn in_portions(
    x: &[f32],
    of_x: usize,
    y: &mut [f32],
    of_y: usize,
    work: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    if y.len() >= IN_F32 {
        let portions = x.par_chunks(of_x).zip(y.par_chunks_mut(of_y)).with_max_len(1);
        portions.for_each(|(x, y)| work(x, y));
        return;
    }
    x.chunks(of_x).zip(y.chunks_mut(of_y)).for_each(|(x, y)| work(x, y));
}
