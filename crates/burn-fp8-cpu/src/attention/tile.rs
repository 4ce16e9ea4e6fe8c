//! A tile of scores, and the softmax over its queries.
//!
//! Rows of a tile are keys and its columns are queries: what a query has of its own, the largest score, sums, the logarithm, is then a vector,
//! and nothing is summed across one. The products take the queries and their gradient transposed, once for all keys; keys and values as they lie.

use pulp::{Simd, WithSimd};

use super::product::{Left, Multiplier, NARROW, Right, RightRows};
use super::{Attention, PADDING, Sizes, TILE, padded};
use crate::dropout::keep;
use crate::special::exp;
use crate::unit::arch;

/// Numbers of keys (rows) and queries (columns).
pub(super) type Tile = [[f32; TILE]; TILE];

/// One number for each query.
pub(super) type Line = [f32; TILE];

/// Which tile: of which head, of which queries and keys.
#[derive(Clone, Copy)]
pub(super) struct TileIndex {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
}

impl TileIndex {
    /// How many queries there are.
    pub(super) fn queries(self, sizes: &Sizes) -> usize {
        TILE.min(sizes.queries - self.queries * TILE)
    }

    /// How many keys there are.
    pub(super) fn keys(self, sizes: &Sizes) -> usize {
        TILE.min(sizes.keys - self.keys * TILE)
    }

    /// Whether no query of the tile sees a key of it.
    pub(super) fn is_hidden(self, sizes: &Sizes, options: &Attention<'_>) -> bool {
        let last = self.queries * TILE + self.queries(sizes) - 1;
        self.keys * TILE >= sizes.visible(last, options.causal)
    }
}

/// Columns that products of queries compute: few ones are not padded.
pub(super) fn columns(queries: usize) -> usize {
    if queries <= NARROW { queries } else { padded(queries) }
}

/// Rows transposed: `[width][TILE]`, zeros where there is no row.
pub(super) fn transpose(rows: RightRows<'_>, count: usize, width: usize, columns: &mut Vec<f32>) {
    columns.clear();
    columns.resize(width * TILE, 0.0);
    for row in 0..count {
        let values = &rows.values[row * rows.stride..][..width];
        for (value, column) in values.iter().zip(columns[row..].iter_mut().step_by(TILE)) {
            *column = *value;
        }
    }
}

/// The sum of products, taken in 16 parts.
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (x, y) in x.iter().zip(y) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    for ((sum, x), y) in sums.iter_mut().zip(x_rest).zip(y_rest) {
        *sum += x * y;
    }
    sums.iter().sum()
}

/// Computes the scores of a tile; -∞ where a query does not see a key. `slopes` are by how much a capped score changes with the score.
///
/// `q` is transposed.
pub(super) fn scores(
    sizes: &Sizes,
    options: &Attention<'_>,
    place: TileIndex,
    (multiplier, q, k): (&mut Multiplier, Right<'_>, Left<'_>),
    tile: &mut Tile,
    slopes: Option<&mut Tile>,
) {
    let (queries, keys) = (place.queries(sizes), place.keys(sizes));
    // What pads queries is read, too.
    tile[..keys].iter_mut().for_each(|scores| scores[queries..padded(queries)].fill(0.0));
    let size = [keys, columns(queries), sizes.width];
    multiplier.multiply(size, (k, q), options.scale, (tile.as_flattened_mut(), TILE), false);
    if let Some(cap) = options.softcap {
        tile[..keys].iter_mut().flatten().for_each(|score| *score = cap * (*score / cap).tanh());
        if let Some(slopes) = slopes {
            for (slope, score) in slopes.iter_mut().flatten().zip(tile[..keys].as_flattened()) {
                let ratio = score / cap;
                *slope = 1.0 - ratio * ratio;
            }
        }
    }
    let [first_query, first_key] = [place.queries * TILE, place.keys * TILE];
    let head = [place.batch, place.head];
    for (row, scores) in tile[..keys].iter_mut().enumerate() {
        let key = first_key + row;
        if let Some(bias) = &options.bias {
            let bias = bias.queries(head, first_query, key);
            scores[..queries].iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        for mask in options.masks {
            let mask = mask.queries(head, first_query, key);
            for (score, hidden) in scores[..queries].iter_mut().zip(mask) {
                if hidden != 0 {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        let first = sizes.first_to_see(key, options.causal).saturating_sub(first_query);
        scores[..first.min(TILE)].fill(f32::NEG_INFINITY);
    }
}

/// The softmax of queries as keys go by.
pub(super) struct Softmax {
    /// The largest score.
    pub(super) largest: Line,
    /// The sum of the exponentials of all scores relative to it.
    pub(super) sum: Line,
}

impl Softmax {
    pub(super) fn new() -> Self {
        Self { largest: [f32::NEG_INFINITY; TILE], sum: [0.0; TILE] }
    }

    /// Replaces scores by their exponentials relative to the largest so far, and returns what those of before are to be multiplied by.
    pub(super) fn take(&mut self, tile: &mut [Line], queries: usize) -> Line {
        let mut corrections = [1.0; TILE];
        arch().dispatch(Exponentials {
            tile,
            width: padded(queries),
            softmax: self,
            corrections: &mut corrections,
        });
        corrections
    }

    /// The logarithm of the sum of a query's exponentials; ∞ where it sees nothing, so that `exp(score - it)` is 0.
    pub(super) fn logarithm(&self, query: usize) -> f32 {
        match self.sum[query] {
            0.0 => f32::INFINITY,
            sum => self.largest[query] + sum.ln(),
        }
    }
}

// Loops that are compiled for each vector instruction set: in `with_simd`, as closures are not always inlined into what knows the instructions.

/// Queries whose numbers are in registers while keys go by.
const LANES: usize = PADDING;

struct Exponentials<'a> {
    tile: &'a mut [Line],
    width: usize,
    softmax: &'a mut Softmax,
    corrections: &'a mut Line,
}

impl WithSimd for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Softmax { largest, sum } = self.softmax;
        let [largest, sum, corrections] =
            [largest, sum, self.corrections].map(|line| line.as_chunks_mut::<LANES>().0);
        for group in 0..self.width / LANES {
            let start = group * LANES;
            let before = largest[group];
            // NaN loses: exponentials of it are NaN whatever they are relative to.
            let mut next = before;
            for scores in &*self.tile {
                let scores = &scores.as_chunks::<LANES>().0[group];
                for lane in 0..LANES {
                    let score = scores[lane];
                    next[lane] = if score > next[lane] { score } else { next[lane] };
                }
            }
            let mut base = next;
            for lane in 0..LANES {
                // Nothing is visible yet: all exponentials are 0.
                base[lane] = if next[lane] == f32::NEG_INFINITY { 0.0 } else { next[lane] };
                corrections[group][lane] = exp(before[lane] - base[lane]);
            }
            let mut sums = [0.0; LANES];
            for scores in &mut *self.tile {
                let scores: &mut [f32; LANES] =
                    (&mut scores[start..start + LANES]).try_into().expect("as many");
                for lane in 0..LANES {
                    scores[lane] = exp(scores[lane] - base[lane]);
                    sums[lane] += scores[lane];
                }
            }
            for lane in 0..LANES {
                sum[group][lane] = sum[group][lane] * corrections[group][lane] + sums[lane];
            }
            largest[group] = next;
        }
    }
}

/// Replaces scores by probabilities: their exponentials relative to the logarithm of the query's sum.
pub(super) struct Probabilities<'a> {
    pub(super) tile: &'a mut [Line],
    pub(super) logarithms: &'a Line,
}

impl WithSimd for Probabilities<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for scores in self.tile {
            for (score, logarithm) in scores.iter_mut().zip(self.logarithms) {
                *score = exp(*score - logarithm);
            }
        }
    }
}

/// What numbers of a tile are multiplied by: 1 where they are kept, 0 where they are dropped. Nothing without dropout.
pub(super) fn kept<'a>(
    sizes: &Sizes,
    options: &Attention<'_>,
    place: TileIndex,
    tile: &'a mut Tile,
) -> Option<&'a Tile> {
    let dropout = options.dropout?;
    let head = (place.batch * sizes.heads + place.head) * sizes.queries;
    let keys = place.keys(sizes);
    keep(dropout, (head + place.queries * TILE) as u64, place.keys * TILE, &mut tile[..keys]);
    Some(tile)
}

/// Replaces the gradients of probabilities by those of scores, and dropped probabilities by 0.
pub(super) struct OfScores<'a> {
    pub(super) gradients: &'a mut [Line],
    pub(super) probabilities: &'a mut [Line],
    pub(super) kept: Option<&'a Tile>,
    pub(super) deltas: &'a Line,
}

impl WithSimd for OfScores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.gradients.iter_mut().zip(self.probabilities).enumerate();
        for (row, (gradients, probabilities)) in rows {
            match self.kept {
                Some(kept) => {
                    for query in 0..TILE {
                        let (p, kept) = (probabilities[query], kept[row][query]);
                        gradients[query] = p * (gradients[query] * kept - self.deltas[query]);
                        probabilities[query] = p * kept;
                    }
                }
                None => {
                    for query in 0..TILE {
                        gradients[query] =
                            probabilities[query] * (gradients[query] - self.deltas[query]);
                    }
                }
            }
        }
    }
}

/// Multiplies numbers of each query, `[rows][TILE]`, by one of its own.
pub(super) struct Correct<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) corrections: &'a [f32],
}

impl WithSimd for Correct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.rows.as_chunks_mut::<TILE>().0 {
            for (x, correction) in row.iter_mut().zip(self.corrections) {
                *x *= correction;
            }
        }
    }
}
