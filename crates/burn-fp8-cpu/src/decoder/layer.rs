//! A layer of a decoder.

use rayon::prelude::*;

use super::cache::CachePart;
use super::linear::{Linear, Memory, multiply};
use super::{rms_norm, swiglu, turn};
use crate::attention::{Attention, Broadcast, HeadNumbers, Heads, HeadsMut, attention};
use crate::share::IN_F32;

/// The matrices of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// To queries.
    Query,
    /// To keys.
    Key,
    /// To values.
    Value,
    /// From heads back to rows.
    Output,
    /// To what opens the gates of the mlp.
    Gate,
    /// To what goes through them.
    Up,
    /// From there back to rows.
    Down,
}

/// What multiplies rows by the matrices of a layer: slices, or a framework.
pub trait Products {
    /// Where rows lie.
    type Memory: Memory;

    /// Writes what matrices make of the same rows, which are the same afterwards.
    fn multiply<const N: usize>(
        &self,
        x: &mut Self::Memory,
        outputs: [(Matrix, &mut Self::Memory); N],
    );
}

/// In the order of [`Matrix`].
impl Products for [Linear<'_>; 7] {
    type Memory = Vec<f32>;

    fn multiply<const N: usize>(&self, x: &mut Vec<f32>, outputs: [(Matrix, &mut Vec<f32>); N]) {
        multiply(x, outputs.map(|(matrix, y)| (self[matrix as usize], y)));
    }
}

/// A layer of a decoder: `x + attention(norm(x))`, then `x + mlp(norm(x))`.
///
/// The mlp is `down(silu(gate(x)) · up(x))`. Each head of keys and values serves neighbouring heads of queries.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a, P> {
    /// What [`rms_norm`] takes before attention and before the mlp: as long as a row.
    pub norms: [&'a [f32]; 2],
    /// What it takes for heads of queries and of keys, where these go through a norm: as long as a head.
    pub head_norms: [Option<&'a [f32]>; 2],
    /// What is added to the mean of squares.
    pub epsilon: f32,
    /// What multiplies.
    pub products: P,
    /// The width of a head.
    pub width: usize,
    /// How many tokens a query sees, its own included; all before it where there is none.
    pub window: Option<usize>,
}

/// The next tokens of each row of a batch, as many of each.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// How many.
    pub tokens: usize,
    /// Cosines and sines of their positions, as [`turn`] takes them: `[rows, tokens, width / 2]`.
    pub turns: [&'a [f32]; 2],
    /// The place of the first in the cache: as many tokens are there before it.
    pub at: usize,
    /// Tokens at the beginning of each row of the cache that are seen by none. Of a token that sees none, not even its own, attention is 0.
    pub padding: &'a [usize],
}

/// What lies between products. It grows to what layers need, and serves all of them.
#[derive(Debug, Default)]
pub struct Workspace<M> {
    normed: M,
    qkv: [M; 3],
    heads: M,
    logarithms: Vec<f32>,
    gate_up: [M; 2],
    result: M,
}

impl<P: Products> Layer<'_, P> {
    /// Takes rows `[rows, tokens, hidden]` through the layer, in place; keys and values of the tokens go into the cache, `[rows, kv heads, room, width]` each.
    ///
    /// Runs on rayon's current pool; the number of threads changes no result.
    ///
    /// # Panics
    /// If shapes do not fit each other, or the cache has no room.
    #[track_caller]
    pub fn forward(
        &self,
        x: &mut [f32],
        next: Next<'_>,
        [mut keys, mut values]: [CachePart<'_>; 2],
        room: &mut Workspace<P::Memory>,
    ) {
        let Self { norms, head_norms, epsilon, width, .. } = *self;
        let Workspace { normed, qkv, heads, logarithms, gate_up: [gate, up], result } = room;
        let rows = next.padding.len() * next.tokens;
        assert!(
            rows > 0 && x.len() == rows * norms[0].len() && norms[0].len() == norms[1].len(),
            "{} numbers are not {rows} rows of {}",
            x.len(),
            norms[0].len()
        );
        let norm = |x: &[f32], normed: &mut P::Memory, norm: &[f32]| {
            let normed = normed.sized(x.len());
            normed.copy_from_slice(x);
            rms_norm(normed, norm, epsilon);
        };
        norm(x, normed, norms[0]);
        let [query, key, value] = qkv;
        let outputs =
            [(Matrix::Query, &mut *query), (Matrix::Key, &mut *key), (Matrix::Value, value)];
        self.products.multiply(normed, outputs);
        let [of_query, of_key] = [&*query, &*key].map(|heads| heads.numbers().len());
        let [query, key] = [query.sized(of_query), key.sized(of_key)];
        for (heads, norm) in [&mut *query, &mut *key].into_iter().zip(head_norms) {
            if let Some(norm) = norm {
                rms_norm(heads, norm, epsilon);
            }
            turn(heads, heads.len() / rows / width, width / 2, next.turns);
        }
        let of_cache = [next.tokens, of_key / rows / width, width];
        keys.put(key, of_cache, next.at);
        values.put(value.numbers(), of_cache, next.at);
        logarithms.resize(of_query / width, 0.0);
        let output = [heads.sized(of_query), logarithms];
        self.attend(query, [&keys, &values], next, of_cache[1], output);
        self.products.multiply(heads, [(Matrix::Output, result)]);
        add(x, result.numbers());

        norm(x, normed, norms[1]);
        self.products.multiply(normed, [(Matrix::Gate, &mut *gate), (Matrix::Up, up)]);
        let up = up.numbers();
        swiglu(gate.sized(up.len()), up);
        self.products.multiply(gate, [(Matrix::Down, result)]);
        add(x, result.numbers());
    }

    /// Attention of queries `[rows, tokens, heads, width]` to the tokens that they see.
    fn attend(
        &self,
        query: &[f32],
        [keys, values]: [&CachePart<'_>; 2],
        next: Next<'_>,
        kv_heads: usize,
        [output, logarithms]: [&mut [f32]; 2],
    ) {
        let Self { width, window, .. } = *self;
        let Next { tokens, at, padding, .. } = next;
        let (rows, end) = (padding.len(), at + tokens);
        let (of_row, heads) = (query.len() / rows, query.len() / rows / tokens / width);
        let room = keys.room(rows * kv_heads, width);
        // What is before the window of the first query is read by none.
        let first = window.map_or(0, |window| (at + 1).saturating_sub(window));
        // Heads that share keys are queries of one head where each has one query: keys are read once.
        let (shape, strides) = match tokens {
            1 => {
                let group = heads / kv_heads;
                ([1, kv_heads, group, width], [of_row, group * width, width])
            }
            _ => ([1, heads, tokens, width], [of_row, width, heads * width]),
        };
        let task = |(row, (output, logarithms)): (usize, (&mut [f32], &mut [f32]))| {
            let seen = first.max(padding[row]).min(end)..end;
            let [k, v] =
                [keys, values].map(|held| held.of(row, [kv_heads, room, width], seen.clone()));
            let q = HeadNumbers::F32(&query[row * of_row..][..of_row]);
            let q = Heads::strided(q, shape, strides);
            let hidden = window.filter(|_| tokens > 1).map(|window| {
                let keys = |query| seen.clone().map(move |key| u8::from(key + window <= query));
                (at..end).flat_map(keys).collect::<Vec<_>>()
            });
            let mask = hidden.as_deref().map(|x| Broadcast::new(x, [1, 1, tokens, seen.len()]));
            let masks = mask.as_slice();
            let options = Attention { causal: tokens > 1, masks, ..Attention::new(width) };
            let output = match tokens {
                1 => HeadsMut::new(output, shape),
                _ => HeadsMut::joined(output, shape),
            };
            attention([q, k, v], &options, output, logarithms);
        };
        let of_logarithms = heads * tokens;
        if query.len() * end < IN_F32 || rows == 1 {
            let rows = output.chunks_exact_mut(of_row);
            let rows = rows.zip(logarithms.chunks_exact_mut(of_logarithms));
            return rows.enumerate().for_each(task);
        }
        let rows = output.par_chunks_exact_mut(of_row);
        let rows = rows.zip(logarithms.par_chunks_exact_mut(of_logarithms));
        rows.with_max_len(1).enumerate().for_each(task);
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
