//! Backward: tiles are computed anew, each once where there are enough heads for all threads, else twice.

use core::cell::RefCell;

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_core::{AttentionShape, Dropout};
use pulp::Arch;
use rayon::prelude::*;

use super::forward::round;
use super::operand::{self, Operand};
use super::product::{Matrix, Product, Rows};
use super::tile::{self, Line, OfScores, Place, Probabilities, Tile, padded, transpose};
use super::{Attention, Heads, HeadsMut, Sizes, TILE};

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
    let prepare = |heads, format| Operand::new(heads, options.precision, format, threads > 1);
    let pass = Pass {
        sizes,
        options,
        operands: [q, k, v].map(|heads| prepare(heads, E4M3)),
        grad: prepare(output_grad, E5M2),
        given: [output, output_grad, logarithms],
        gradients,
    };
    let [query_tiles, key_tiles] = sizes.tiles();
    let (of_heads, of_keys) = (batch * kv_heads, batch * kv_heads * key_tiles);
    if threads == 1 {
        return (0..of_heads).for_each(|head| pass.keys(head, 0..key_tiles, true));
    }
    // Enough heads to share them evenly; else by keys and by queries, which computes each tile for either. The sums are the same.
    if of_heads.is_multiple_of(threads) || of_heads >= 8 * threads {
        return (0..of_heads)
            .into_par_iter()
            .with_max_len(1)
            .for_each(|head| pass.keys(head, 0..key_tiles, true));
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
    operands: [Operand<'a>; 3],
    /// The gradient of the output, as it is multiplied.
    grad: Operand<'a>,
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
        SCRATCH.with_borrow_mut(|scratch| {
            let mut sums = core::mem::take(&mut scratch.sums);
            let [of_q, of_k, of_v] = &mut sums;
            zeros(of_k, tiles.len() * TILE * sizes.width);
            zeros(of_v, tiles.len() * TILE * sizes.value_width);
            for head in kv_head * sizes.group()..(kv_head + 1) * sizes.group() {
                for queries in 0..sizes.tiles()[0] {
                    let place = Place { batch, head, queries, keys: first };
                    if !whole && place.is_hidden(sizes, self.options) {
                        continue;
                    }
                    let given = self.given(place, &mut scratch.columns);
                    zeros(of_q, sizes.width * TILE);
                    for keys in tiles.clone() {
                        let place = Place { keys, ..place };
                        if place.is_hidden(sizes, self.options) {
                            break;
                        }
                        let scales = self.tile(place, &given, scratch);
                        let index = keys - first;
                        let of_k = &mut of_k[index * TILE * sizes.width..];
                        let of_v = &mut of_v[index * TILE * sizes.value_width..];
                        self.add_keys(place, scratch, &scales, [of_k, of_v]);
                        if whole {
                            self.add_queries(place, scratch, &scales, of_q);
                        }
                    }
                    if whole {
                        self.store_queries(place, of_q);
                    }
                }
            }
            for (gradient, sums) in [(&self.gradients.k, of_k), (&self.gradients.v, of_v)] {
                let keys = first * TILE..sizes.keys.min(tiles.end * TILE);
                for (key, sums) in keys.zip(sums.chunks(gradient.shape[3])) {
                    // SAFETY: this task alone has these keys of the head.
                    unsafe { gradient.row(batch, kv_head, key) }.copy_from_slice(sums);
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
        let place = Place { batch, head, queries, keys: 0 };
        SCRATCH.with_borrow_mut(|scratch| {
            let given = self.given(place, &mut scratch.columns);
            let mut of_q = core::mem::take(&mut scratch.sums[0]);
            zeros(&mut of_q, sizes.width * TILE);
            for keys in 0..key_tiles {
                let place = Place { keys, ..place };
                if place.is_hidden(sizes, self.options) {
                    break;
                }
                let scales = self.tile(place, &given, scratch);
                self.add_queries(place, scratch, &scales, &mut of_q);
            }
            self.store_queries(place, &of_q);
            scratch.sums[0] = of_q;
        });
    }

    /// Transposes queries and gradients, too.
    fn given(&self, place: Place, columns: &mut [Vec<f32>; 2]) -> Given {
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
            given.deltas[row] = output.iter().zip(grad).map(|(y, grad)| y * grad).sum();
        }
        let widths = [sizes.width, sizes.value_width];
        for ((operand, width), columns) in [q, of_output].into_iter().zip(widths).zip(columns) {
            let rows = operand.tile(place.batch, place.head, place.queries);
            transpose(rows, queries, width, columns);
        }
        given
    }

    /// Computes the probabilities and the gradients of the scores of a tile, as they are multiplied.
    fn tile(&self, place: Place, given: &Given, scratch: &mut Scratch) -> TileScales {
        let Self { sizes, options, operands: [q, k, v], grad, .. } = self;
        let Scratch { probabilities, scores: gradients, slopes, kept, columns, .. } = scratch;
        let (queries, keys) = (place.queries(sizes), place.keys(sizes));
        let kv_head = place.head / sizes.group();
        let [q, grad] = [q, grad].map(|of| of.tile(place.batch, place.head, place.queries).scale);
        let [q, grad] = [(q, &columns[0]), (grad, &columns[1])].map(|(scale, values)| Rows {
            values,
            stride: TILE,
            scale,
        });
        let [k, v] = [k, v].map(|of| of.tile(place.batch, kv_head, place.keys));
        tile::scores(sizes, options, place, (q, k.into()), probabilities, Some(slopes));
        let probabilities = &mut probabilities[..keys];
        let (tile, logarithms) = (&mut *probabilities, &given.logarithms);
        Arch::new().dispatch(Probabilities { tile, logarithms });

        // Of the probabilities, then of the scores.
        let factor = options.dropout.map_or(1.0, Dropout::factor);
        Arch::new().dispatch(Product {
            size: [keys, padded(queries), sizes.value_width],
            lhs: v.into(),
            rhs: grad,
            factor,
            output: (gradients.as_flattened_mut(), TILE),
            accumulate: false,
        });
        let gradients = &mut gradients[..keys];
        let kept = tile::kept(sizes, options, place, kept);
        let (of_probabilities, deltas) = (&mut *gradients, &given.deltas);
        let tile = &mut *probabilities;
        Arch::new().dispatch(OfScores {
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
        TileScales {
            probabilities: factor * round(probabilities, options.precision),
            scores: operand::round(gradients.as_flattened_mut(), options.precision, E5M2),
        }
    }

    fn add_keys(
        &self,
        place: Place,
        scratch: &Scratch,
        scales: &TileScales,
        [of_k, of_v]: [&mut [f32]; 2],
    ) {
        let Self { sizes, options, operands: [q, ..], grad, .. } = self;
        let (queries, keys) = (place.queries(sizes), place.keys(sizes));
        let [q, grad] = [q, grad].map(|of| of.tile(place.batch, place.head, place.queries));
        let probabilities = rows(&scratch.probabilities, scales.probabilities);
        Arch::new().dispatch(Product {
            size: [keys, sizes.value_width, queries],
            lhs: probabilities.into(),
            rhs: grad,
            factor: 1.0,
            output: (of_v, sizes.value_width),
            accumulate: true,
        });
        Arch::new().dispatch(Product {
            size: [keys, sizes.width, queries],
            lhs: rows(&scratch.scores, scales.scores).into(),
            rhs: q,
            factor: options.scale,
            output: (of_k, sizes.width),
            accumulate: true,
        });
    }

    fn add_queries(&self, place: Place, scratch: &Scratch, scales: &TileScales, of_q: &mut [f32]) {
        let Self { sizes, options, operands: [_, k, _], .. } = self;
        let k = k.tile(place.batch, place.head / sizes.group(), place.keys);
        Arch::new().dispatch(Product {
            size: [sizes.width, padded(place.queries(sizes)), place.keys(sizes)],
            lhs: Matrix::from(k).transpose(),
            rhs: rows(&scratch.scores, scales.scores),
            factor: options.scale,
            output: (of_q, TILE),
            accumulate: true,
        });
    }

    fn store_queries(&self, place: Place, of_q: &[f32]) {
        for row in 0..place.queries(&self.sizes) {
            let query = place.queries * TILE + row;
            // SAFETY: one task alone has this head with all keys: that of its keys' head, or of this tile of queries.
            let gradient = unsafe { self.gradients.q.row(place.batch, place.head, query) };
            let sums = of_q[row..].iter().step_by(TILE);
            gradient.iter_mut().zip(sums).for_each(|(gradient, sum)| *gradient = *sum);
        }
    }
}

fn rows(tile: &Tile, scale: f32) -> Rows<'_> {
    Rows { values: tile.as_flattened(), stride: TILE, scale }
}
