//! Forward: rows of queries, tile by tile of keys.

use core::cell::RefCell;

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_core::{AttentionShape, Dropout, Fp8Format};
use rayon::prelude::*;

use super::operand::{self, HeadOperand, Keep, Means, OfTile, TileMemory};
use super::pairs::{Layout, Pairing};
use super::product::Multiplier;
use super::tile::{self, Correct, Line, Softmax, Tile, TileIndex};
use super::{Attention, AttentionPrecision, Heads, HeadsMut, Sizes, TILE, padded};
use crate::unit::arch;

/// What the products of probabilities are multiplied by: the largest probability is the largest number of the format.
const OF_PROBABILITIES: f32 = 1.0 / Fp8Format::E4M3.max();

/// Attention of `q` `[batch, heads, queries, width]` to `k` `[batch, kv_heads, keys, width]` and `v` `[batch, kv_heads, keys, value width]`,
/// written to `output` `[batch, heads, queries, value width]`, on rayon's current pool.
///
/// Each head of keys and values serves `heads / kv_heads` neighbouring heads of queries. `logarithms` `[batch, heads, queries]` receives the
/// logarithm of the sum of each row's exponentials, which [`attention_backward`](super::attention_backward) takes; ∞ where a query sees no key,
/// whose result is 0. NaN goes through to the results of its row.
///
/// # Panics
/// If shapes do not fit each other, heads are wider than 256, there are more or fewer logarithms than queries, or the machine lacks the unit.
#[track_caller]
pub fn attention(
    [q, k, v]: [Heads<'_>; 3],
    options: &Attention<'_>,
    output: HeadsMut<'_>,
    logarithms: &mut [f32],
) {
    let sizes = Sizes::check([q, k, v].map(|heads| heads.shape), options);
    let AttentionShape { batch, heads, queries, .. } = *sizes;
    let expected = sizes.output();
    assert!(output.shape == expected, "the output has shape {:?}, not {expected:?}", output.shape);
    let logarithms = HeadsMut::new(logarithms, [batch, heads, queries, 1]);
    let threads = sizes.threads();
    let pairing = Pairing::find(options.unit, options.precision);
    let means = Means { precision: options.precision, pairing, parallel: threads > 1 };
    let operands = [
        HeadOperand::new(q, means, E4M3, Keep::Tile(&[Layout::Columns])),
        HeadOperand::new(k, means, E4M3, Keep::Head(&[Layout::Rows])),
        HeadOperand::new(v, means, E4M3, Keep::Head(&[Layout::Transposed])),
    ];
    let [tiles, _] = sizes.tiles();
    let task = |index: usize| {
        let place = TileIndex {
            batch: index / tiles / heads,
            head: index / tiles % heads,
            queries: index % tiles,
            keys: 0,
        };
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        SCRATCH.with_borrow_mut(|scratch| {
            // SAFETY: the task neither multiplies otherwise nor waits for others, which its thread would run meanwhile.
            let multiplier = unsafe { Multiplier::new(pairing) };
            let softmax = rows(&sizes, options, place, multiplier, &operands, scratch);
            let factor = options.dropout.map_or(1.0, Dropout::factor);
            for row in 0..place.queries(&sizes) {
                let query = place.queries * TILE + row;
                // SAFETY: this task alone has the queries of its tile.
                let [output, logarithm] = unsafe {
                    [&output, &logarithms].map(|heads| heads.row(place.batch, place.head, query))
                };
                let sum = softmax.sum[row];
                let factor = if sum == 0.0 { 0.0 } else { factor / sum };
                let sums = scratch.sums[row..].iter().step_by(TILE);
                output.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum * factor);
                logarithm[0] = softmax.logarithm(row);
            }
        });
    };
    let tasks = batch * heads * tiles;
    match threads {
        1 => (0..tasks).for_each(task),
        _ => (0..tasks).into_par_iter().with_max_len(1).for_each(task),
    }
}

struct Scratch {
    tile: Box<Tile>,
    kept: Box<Tile>,
    /// The queries, transposed.
    q: Vec<f32>,
    /// Tiles of queries, keys and values, where they are converted.
    rooms: [TileMemory; 3],
    /// Sums of values, weighted by exponentials: `[value width][TILE]`.
    sums: Vec<f32>,
    /// The exponentials in bf16.
    words: Vec<u32>,
}

impl Default for Scratch {
    fn default() -> Self {
        let tile = || Box::new([[0.0; TILE]; TILE]);
        Self {
            tile: tile(),
            kept: tile(),
            q: vec![],
            rooms: Default::default(),
            sums: vec![],
            words: vec![],
        }
    }
}

/// A tile of queries: goes through the keys, and leaves the weighted sums of values.
fn rows(
    sizes: &Sizes,
    options: &Attention<'_>,
    place: TileIndex,
    mut multiplier: Multiplier,
    [q, k, v]: &[HeadOperand<'_>; 3],
    Scratch { tile, kept, q: columns, rooms: [of_q, of_k, of_v], sums, words }: &mut Scratch,
) -> Softmax {
    let kv_head = place.head / sizes.group();
    let pairing = multiplier.pairing;
    let queries = place.queries(sizes);
    let mut softmax = Softmax::new();
    sums.clear();
    sums.resize(sizes.value_width * TILE, 0.0);
    let of_queries = [place.batch, place.head, place.queries];
    q.transpose(of_queries, queries, of_q, columns);
    let q = q.transposed(of_queries, of_q, columns);
    for keys in 0..sizes.tiles()[1] {
        let place = TileIndex { keys, ..place };
        if place.is_hidden(sizes, options) {
            break;
        }
        let of_keys = [place.batch, kv_head, keys];
        let k = k.left(of_keys, false, queries, of_k);
        let v = v.left(of_keys, true, queries, of_v);
        let keys = place.keys(sizes);
        tile::scores(sizes, options, place, (&mut multiplier, q, k), tile, None);
        let corrections = &softmax.take(&mut tile[..keys], queries)[..padded(queries)];
        if place.keys > 0 {
            arch().dispatch(Correct { rows: sums, corrections });
        }
        if let Some(kept) = tile::kept(sizes, options, place, kept) {
            for (x, kept) in tile[..keys].iter_mut().flatten().zip(kept.as_flattened()) {
                *x *= kept;
            }
        }
        let tile = &mut tile[..keys];
        let scale = round(tile, options.precision, pairing);
        let weights = OfTile { tile, scale, pairing, words }.right(queries);
        let size = [sizes.value_width, tile::columns(queries), keys];
        multiplier.multiply(size, (v, weights), 1.0, (sums, TILE), true);
    }
    softmax
}

/// Rounds probabilities to what is multiplied, and returns the scale of products.
pub(super) fn round(
    tile: &mut [Line],
    precision: AttentionPrecision,
    pairing: Option<Pairing>,
) -> f32 {
    match precision {
        AttentionPrecision::Fp8 => {
            operand::round_with(tile.as_flattened_mut(), OF_PROBABILITIES, E4M3)
        }
        _ => operand::round(tile.as_flattened_mut(), precision, E4M3, pairing),
    }
}
