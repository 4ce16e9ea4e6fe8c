//! A layer of a decoder.

use rayon::prelude::*;

use super::cache::Held;
use super::linear::{Linear, together};
use super::{rms_norm, swiglu, turn};
use crate::attention::{Attention, HeadNumbers, Heads, HeadsMut, WORTHWHILE, attention};

/// A layer of a decoder: `x + attention(norm(x))`, then `x + mlp(norm(x))`.
///
/// The mlp is `down(silu(gate(x)) · up(x))`. Each head of keys and values serves neighbouring heads of queries.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// What [`rms_norm`] takes before attention and before the mlp: as long as a row.
    pub norms: [&'a [f32]; 2],
    /// What it takes for heads of queries and of keys, where these go through a norm: as long as a head.
    pub head_norms: [Option<&'a [f32]>; 2],
    /// What is added to the mean of squares.
    pub epsilon: f32,
    /// Queries, keys and values.
    pub qkv: [Linear<'a>; 3],
    /// From heads back to rows.
    pub output: Linear<'a>,
    /// Gate, and what goes through it.
    pub gate_up: [Linear<'a>; 2],
    /// Back to rows.
    pub down: Linear<'a>,
    /// The width of a head.
    pub width: usize,
}

/// One token of each row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Cosines and sines of its position, as [`turn`] takes them: `[rows, width / 2]`.
    pub turns: [&'a [f32]; 2],
    /// Its place in the cache: as many tokens are there before it.
    pub at: usize,
    /// The first token in the cache that each row sees. Of a row that sees none, not even its own, attention is 0.
    pub first: &'a [usize],
}

/// Memory for what lies between products. It grows to what layers need, and serves all of them.
#[derive(Debug, Default)]
pub struct Room {
    normed: Vec<f32>,
    qkv: [Vec<f32>; 3],
    heads: Vec<f32>,
    logarithms: Vec<f32>,
    gate_up: [Vec<f32>; 2],
    result: Vec<f32>,
}

impl Layer<'_> {
    /// Takes rows `[rows, hidden]` through the layer, in place; keys and values of the token go into the cache, `[rows, kv heads, room, width]` each.
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
        [mut keys, mut values]: [Held<'_>; 2],
        room: &mut Room,
    ) {
        let Self { norms, head_norms, epsilon, qkv, output, gate_up, down, width } = *self;
        let Room { normed, qkv: of_qkv, heads, logarithms, gate_up: of_mlp, result } = room;
        let rows = next.first.len();
        assert!(
            rows > 0 && x.len() == rows * norms[0].len() && norms[0].len() == norms[1].len(),
            "{} numbers are not {rows} rows of {}",
            x.len(),
            norms[0].len()
        );
        let outputs = |layer: &Linear<'_>| rows * layer.shape[0];
        let result = sized(result, x.len());

        let normed = sized(normed, x.len());
        normed.copy_from_slice(x);
        rms_norm(normed, norms[0], epsilon);
        let [query, key, value] = of_qkv;
        let query = sized(query, outputs(&qkv[0]));
        let key = sized(key, outputs(&qkv[1]));
        let value = sized(value, outputs(&qkv[2]));
        together(normed, [(&qkv[0], query), (&qkv[1], key), (&qkv[2], value)]);
        for (heads, norm) in [&mut *query, &mut *key].into_iter().zip(head_norms) {
            if let Some(norm) = norm {
                rms_norm(heads, norm, epsilon);
            }
            turn(heads, heads.len() / rows / width, width / 2, next.turns);
        }
        keys.put(key, width, next.at);
        values.put(value, width, next.at);
        let heads = sized(heads, query.len());
        let logarithms = sized(logarithms, query.len() / width);
        attend(
            query,
            [&keys, &values],
            next,
            [key.len() / rows / width, width],
            [heads, logarithms],
        );
        output.forward(heads, result);
        add(x, result);

        normed.copy_from_slice(x);
        rms_norm(normed, norms[1], epsilon);
        let [gate, up] = of_mlp;
        let [gate, up] = [sized(gate, outputs(&gate_up[0])), sized(up, outputs(&gate_up[1]))];
        together(normed, [(&gate_up[0], gate), (&gate_up[1], up)]);
        swiglu(gate, up);
        down.forward(gate, result);
        add(x, result);
    }
}

/// Attention of one query `[rows, heads, width]` of each row to the tokens that it sees. Heads that share keys are queries of one head: keys are read once.
fn attend(
    query: &[f32],
    [keys, values]: [&Held<'_>; 2],
    next: Next<'_>,
    [kv_heads, width]: [usize; 2],
    [output, logarithms]: [&mut [f32]; 2],
) {
    let rows = next.first.len();
    let (of_row, heads) = (query.len() / rows, query.len() / rows / width);
    let group = heads / kv_heads;
    let shape = [1, kv_heads, group, width];
    let room = keys.room(rows * kv_heads, width);
    let options = Attention::new(width);
    let task = |(row, (output, logarithms)): (usize, (&mut [f32], &mut [f32]))| {
        let end = next.at + 1;
        let seen = next.first[row].min(end)..end;
        let [k, v] = [keys, values].map(|held| held.of(row, [kv_heads, room, width], seen.clone()));
        let strides = [of_row, group * width, width];
        let q = HeadNumbers::F32(&query[row * of_row..][..of_row]);
        let q = Heads::strided(q, shape, strides);
        attention([q, k, v], &options, HeadsMut::new(output, shape), logarithms);
    };
    if query.len() * (next.at + 1) < WORTHWHILE || rows == 1 {
        let rows = output.chunks_exact_mut(of_row).zip(logarithms.chunks_exact_mut(heads));
        return rows.enumerate().for_each(task);
    }
    let rows = output.par_chunks_exact_mut(of_row).zip(logarithms.par_chunks_exact_mut(heads));
    rows.with_max_len(1).enumerate().for_each(task);
}

/// So many numbers of a room, whatever they are.
fn sized(room: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if room.len() < count {
        room.resize(count, 0.0);
    }
    &mut room[..count]
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
