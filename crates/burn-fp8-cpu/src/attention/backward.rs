//! Backward: tiles are computed anew, each once where there are enough heads for all threads, else twice.

use core::cell::RefCell;

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_core::{AttentionShape, Dropout};
use rayon::prelude::*;

use super::forward::round;
use super::operand::{self, HeadOperand, Keep, Means, OfTile, TileMemory};
use super::pairs::{Layout, Pairing};
use super::product::Multiplier;
use super::tile::{self, Line, OfScores, Probabilities, Tile, TileIndex};
use super::{Attention, Heads, HeadsMut, Sizes, TILE, padded};
use crate::unit::arch;

/// Where the gradients of queries, keys and values go, of their shapes.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// That of the queries.
    pub q: HeadsMut<'a>,
    /// That of the keys.
    pub k: HeadsMut<'a>,
    /// That of the values.
    pub v: HeadsMut<'a>,
}

/// The gradients of [`attention`](super::attention) with the same operands and options, on rayon's current pool.
///
/// `output` and `logarithms` are what it gave, `output_grad` the gradient of the output, of its shape. Bias and masks are constants.
///
/// # Panics
/// As [`attention`](super::attention), and if a gradient has another shape than its operand.
#[track_caller]
pub fn attention_backward(
    [q, k, v]: [Heads<'_>; 3],
    options: &Attention<'_>,
    [output, output_grad]: [Heads<'_>; 2],
    logarithms: &[f32],
    gradients: Gradients<'_>,
) {
    let sizes = Sizes::check([q, k, v].map(|heads| heads.shape), options);
    let AttentionShape { batch, heads, kv_heads, queries, .. } = *sizes;
    let results = sizes.output();
    for (name, shape, expected) in [
        ("output", output.shape, results),
        ("gradient of the output", output_grad.shape, results),
        ("gradient of the queries", gradients.q.shape, q.shape),
        ("gradient of the keys", gradients.k.shape, k.shape),
        ("gradient of the values", gradients.v.shape, v.shape),
    ] {
        assert!(shape == expected, "the {name} has shape {shape:?}, not {expected:?}");
    }
    let logarithms = Heads::new(logarithms, [batch, heads, queries, 1]);
    let threads = sizes.threads();
    let pairing = Pairing::find(options.unit, options.precision);
    let means = Means { precision: options.precision, pairing, parallel: threads > 1 };
    // Enough heads to share them evenly; else by keys and by queries, which computes each tile for either. The sums are the same.
    let of_heads = batch * kv_heads;
    let whole = threads == 1 || of_heads.is_multiple_of(threads) || of_heads >= 8 * threads;
    let layouts = &[Layout::Columns, Layout::Pairs];
    // Tiles of queries come by once for each tile of keys, or once for all of a head.
    let of_queries = if whole { Keep::Tile(layouts) } else { Keep::Head(layouts) };
    let pass = Pass {
        sizes,
        options,
        pairing,
        operands: [
            HeadOperand::new(q, means, E4M3, of_queries),
            HeadOperand::new(k, means, E4M3, Keep::Head(&[Layout::Rows, Layout::Transposed])),
            HeadOperand::new(v, means, E4M3, Keep::Head(&[Layout::Rows])),
        ],
        grad: HeadOperand::new(output_grad, means, E5M2, of_queries),
        given: [output, output_grad, logarithms],
        gradients,
    };
    let [query_tiles, key_tiles] = sizes.tiles();
    let of_keys = of_heads * key_tiles;
    let head = |head| pass.keys(head, 0..key_tiles, true);
    if threads == 1 {
        return (0..of_heads).for_each(head);
    }
    if whole {
        return (0..of_heads).into_par_iter().with_max_len(1).for_each(head);
    }
    (0..of_keys + batch * heads * query_tiles).into_par_iter().with_max_len(1).for_each(|index| {
        match index.checked_sub(of_keys) {
            None => {
                let tile = index % key_tiles;
                pass.keys(index / key_tiles, tile..tile + 1, false);
            }
            Some(index) => pass.queries(index),
        }
    });
}

struct Pass<'a> {
    sizes: Sizes,
    options: &'a Attention<'a>,
    pairing: Option<Pairing>,
    operands: [HeadOperand<'a>; 3],
    /// The gradient of the output, as it is multiplied.
    grad: HeadOperand<'a>,
    /// The output, its gradient, the logarithms.
    given: [Heads<'a>; 3],
    gradients: Gradients<'a>,
}

struct Scratch {
    /// Probabilities, those dropped as 0.
    probabilities: Box<Tile>,
    /// The gradients of scores.
    scores: Box<Tile>,
    slopes: Box<Tile>,
    kept: Box<Tile>,
    /// A tile of queries and of the gradient of the output, transposed.
    columns: [Vec<f32>; 2],
    /// The gradients of a tile of queries, transposed, and of keys and values.
    sums: [Vec<f32>; 3],
    /// A tile in bf16.
    words: Vec<u32>,
    /// Tiles of queries, keys, values and the gradient of the output, where they are converted.
    rooms: [TileMemory; 4],
}

impl Default for Scratch {
    fn default() -> Self {
        let tile = || Box::new([[0.0; TILE]; TILE]);
        Self {
            probabilities: tile(),
            scores: tile(),
            slopes: tile(),
            kept: tile(),
            columns: Default::default(),
            sums: Default::default(),
            words: vec![],
            rooms: Default::default(),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Scales that products with both tiles are to be multiplied by.
struct TileScales {
    probabilities: f32,
    scores: f32,
}

/// What the rows of a tile of queries have in common with all keys.
struct Given {
    logarithms: Line,
    /// Sums of output times gradient.
    deltas: Line,
}

fn zeros(sums: &mut Vec<f32>, count: usize) {
    sums.clear();
    sums.resize(count, 0.0);
}

impl Pass<'_> {
    /// The gradients of tiles of keys and values of a head; where `whole`, all of them, and those of the queries on the way.
    fn keys(&self, head: usize, tiles: core::ops::Range<usize>, whole: bool) {
        let sizes = &self.sizes;
        let (batch, kv_head) = (head / sizes.kv_heads, head % sizes.kv_heads);
        let first = tiles.start;
        // SAFETY: the task neither multiplies otherwise nor waits for others, which its thread would run meanwhile.
        let multiplier = &mut unsafe { Multiplier::new(self.pairing) };
        SCRATCH.with_borrow_mut(|scratch| {
            let mut sums = core::mem::take(&mut scratch.sums);
            let [of_q, of_k, of_v] = &mut sums;
            let [width, value_width] = [sizes.width, sizes.value_width].map(padded);
            zeros(of_k, tiles.len() * TILE * width);
            zeros(of_v, tiles.len() * TILE * value_width);
            for head in kv_head * sizes.group()..(kv_head + 1) * sizes.group() {
                for queries in 0..sizes.tiles()[0] {
                    let place = TileIndex { batch, head, queries, keys: first };
                    if !whole && place.is_hidden(sizes, self.options) {
                        continue;
                    }
                    let given = self.given(place, scratch);
                    zeros(of_q, sizes.width * TILE);
                    for keys in tiles.clone() {
                        let place = TileIndex { keys, ..place };
                        if place.is_hidden(sizes, self.options) {
                            break;
                        }
                        let scales = self.tile(place, &given, scratch, multiplier);
                        let index = keys - first;
                        let of_k = &mut of_k[index * TILE * width..];
                        let of_v = &mut of_v[index * TILE * value_width..];
                        self.add_keys(place, scratch, &scales, multiplier, [of_k, of_v]);
                        if whole {
                            self.add_queries(place, scratch, &scales, multiplier, of_q);
                        }
                    }
                    if whole {
                        self.store_queries(place, of_q);
                    }
                }
            }
            for (gradient, sums) in [(&self.gradients.k, of_k), (&self.gradients.v, of_v)] {
                let keys = first * TILE..sizes.keys.min(tiles.end * TILE);
                let width = gradient.shape[3];
                for (key, sums) in keys.zip(sums.chunks(padded(width))) {
                    // SAFETY: this task alone has these keys of the head.
                    unsafe { gradient.row(batch, kv_head, key) }.copy_from_slice(&sums[..width]);
                }
            }
            scratch.sums = sums;
        });
    }

    /// The gradient of a tile of queries alone.
    fn queries(&self, index: usize) {
        let sizes = &self.sizes;
        let [tiles, key_tiles] = sizes.tiles();
        let (head, queries) = (index / tiles, index % tiles);
        let [batch, head] = [head / sizes.heads, head % sizes.heads];
        let place = TileIndex { batch, head, queries, keys: 0 };
        // SAFETY: as for keys.
        let multiplier = &mut unsafe { Multiplier::new(self.pairing) };
        SCRATCH.with_borrow_mut(|scratch| {
            let given = self.given(place, scratch);
            let mut of_q = core::mem::take(&mut scratch.sums[0]);
            zeros(&mut of_q, sizes.width * TILE);
            for keys in 0..key_tiles {
                let place = TileIndex { keys, ..place };
                if place.is_hidden(sizes, self.options) {
                    break;
                }
                let scales = self.tile(place, &given, scratch, multiplier);
                self.add_queries(place, scratch, &scales, multiplier, &mut of_q);
            }
            self.store_queries(place, &of_q);
            scratch.sums[0] = of_q;
        });
    }

    /// Transposes queries and gradients, too.
    fn given(&self, place: TileIndex, scratch: &mut Scratch) -> Given {
        let Self { sizes, operands: [q, ..], grad: of_output, .. } = self;
        let [output, grad, logarithms] = &self.given;
        // Nothing comes of queries that are not there.
        let mut given = Given { logarithms: [f32::INFINITY; TILE], deltas: [0.0; TILE] };
        let queries = place.queries(sizes);
        for row in 0..queries {
            let query = place.queries * TILE + row;
            let [output, grad, logarithm] =
                [output, grad, logarithms].map(|heads| heads.row(place.batch, place.head, query));
            given.logarithms[row] = logarithm[0];
            given.deltas[row] = tile::dot(output, grad);
        }
        let Scratch { columns: [of_q, of_grad], rooms: [room, ..], .. } = scratch;
        let place = [place.batch, place.head, place.queries];
        q.transpose(place, queries, room, of_q);
        of_output.transpose(place, queries, room, of_grad);
        given
    }

    /// Computes the probabilities and the gradients of the scores of a tile, as they are multiplied.
    fn tile(
        &self,
        place: TileIndex,
        given: &Given,
        scratch: &mut Scratch,
        multiplier: &mut Multiplier,
    ) -> TileScales {
        let Self { sizes, options, operands: [q, k, v], grad, .. } = self;
        let Scratch { probabilities, scores: gradients, slopes, kept, columns, rooms, .. } =
            scratch;
        let [for_q, for_k, for_v, for_grad] = rooms;
        let (queries, keys) = (place.queries(sizes), place.keys(sizes));
        let of_queries = [place.batch, place.head, place.queries];
        let of_keys = [place.batch, place.head / sizes.group(), place.keys];
        let q = q.transposed(of_queries, for_q, &columns[0]);
        let grad = grad.transposed(of_queries, for_grad, &columns[1]);
        let k = k.left(of_keys, false, TILE, for_k);
        tile::scores(sizes, options, place, (multiplier, q, k), probabilities, Some(slopes));
        let probabilities = &mut probabilities[..keys];
        let (tile, logarithms) = (&mut *probabilities, &given.logarithms);
        arch().dispatch(Probabilities { tile, logarithms });

        // Of the probabilities, then of the scores.
        let factor = options.dropout.map_or(1.0, Dropout::factor);
        let size = [keys, padded(queries), sizes.value_width];
        let v = v.left(of_keys, false, TILE, for_v);
        let output = (gradients.as_flattened_mut(), TILE);
        multiplier.multiply(size, (v, grad), factor, output, false);
        let gradients = &mut gradients[..keys];
        let kept = tile::kept(sizes, options, place, kept);
        let (of_probabilities, deltas) = (&mut *gradients, &given.deltas);
        let tile = &mut *probabilities;
        arch().dispatch(OfScores {
            gradients: of_probabilities,
            probabilities: tile,
            kept,
            deltas,
        });
        if options.softcap.is_some() {
            for (gradient, slope) in gradients.iter_mut().flatten().zip(slopes.as_flattened()) {
                *gradient *= slope;
            }
        }
        let precision = options.precision;
        let gradients = gradients.as_flattened_mut();
        TileScales {
            probabilities: factor * round(probabilities, precision, self.pairing),
            scores: operand::round(gradients, precision, E5M2, self.pairing),
        }
    }

    fn add_keys(
        &self,
        place: TileIndex,
        Scratch { probabilities, scores, words, rooms: [for_q, .., for_grad], .. }: &mut Scratch,
        scales: &TileScales,
        multiplier: &mut Multiplier,
        [of_k, of_v]: [&mut [f32]; 2],
    ) {
        let Self { sizes, options, pairing, operands: [q, ..], grad, .. } = self;
        let pairing = *pairing;
        let (queries, keys) = (place.queries(sizes), place.keys(sizes));
        let of_queries = [place.batch, place.head, place.queries];
        let [width, value_width] = [sizes.width, sizes.value_width];
        let of_scale = options.scale;
        for (tile, scale, operand, room, width, factor, output) in [
            (probabilities, scales.probabilities, grad, for_grad, value_width, 1.0, of_v),
            (scores, scales.scores, q, for_q, width, of_scale, of_k),
        ] {
            let tile = OfTile { tile: &tile[..keys], scale, pairing, words }.left(queries);
            let operands = (tile, operand.right(of_queries, room));
            let output = (output, padded(width));
            multiplier.multiply([keys, width, queries], operands, factor, output, true);
        }
    }

    fn add_queries(
        &self,
        place: TileIndex,
        Scratch { scores, words, rooms: [_, for_k, ..], .. }: &mut Scratch,
        scales: &TileScales,
        multiplier: &mut Multiplier,
        of_q: &mut [f32],
    ) {
        let Self { sizes, options, pairing, operands: [_, k, _], .. } = self;
        let pairing = *pairing;
        let (queries, keys) = (place.queries(sizes), place.keys(sizes));
        let of_keys = [place.batch, place.head / sizes.group(), place.keys];
        let k = k.left(of_keys, true, TILE, for_k);
        let tile = OfTile { tile: &scores[..keys], scale: scales.scores, pairing, words };
        let size = [sizes.width, padded(queries), keys];
        let operands = (k, tile.right(queries));
        multiplier.multiply(size, operands, options.scale, (of_q, TILE), true);
    }

    fn store_queries(&self, place: TileIndex, of_q: &[f32]) {
        for row in 0..place.queries(&self.sizes) {
            let query = place.queries * TILE + row;
            // SAFETY: one task alone has this head with all keys: that of its keys' head, or of this tile of queries.
            let gradient = unsafe { self.gradients.q.row(place.batch, place.head, query) };
            let sums = of_q[row..].iter().step_by(TILE);
            gradient.iter_mut().zip(sums).for_each(|(gradient, sum)| *gradient = *sum);
        }
    }
}
