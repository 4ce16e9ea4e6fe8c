//! A layer of a decoder.

use std::ops::Range;

use anyhow::Result;
use burn::module::Module;
use burn::nn::{RmsNorm, RmsNormConfig};
use burn::tensor::activation::silu;
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::fused::ops::{AttentionOptions, attention};
use burn_fp8::ops::attention_to_fp8;

use super::cache::{CacheTensor, LayerCache};
use super::projection::{Plain, Projection, Reader, WIDTH};
use super::rope::Turns;
use crate::config::Config;

/// What all layers need of the tokens that go through.
pub(crate) struct Step<B: Backend> {
    pub(crate) turns: Turns<B>,
    /// Which keys are padding: `[batch, keys]`, of all that there are after it. None where none is.
    pub(crate) padding: Option<Tensor<B, 2, Bool>>,
    /// Positions that the cache may have.
    pub(crate) limit: usize,
}

/// The matrices of a layer by their names in a checkpoint, without `model.layers.N`, in the order of [`Matrix`](burn_fp8_cpu::decoder::Matrix).
pub(crate) const MATRICES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Its norms, likewise: before attention, before the mlp, and of heads of queries and keys.
pub(crate) const NORMS: [&str; 4] =
    ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"];

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`; causal attention of grouped heads, with rotary embeddings.
#[derive(Module, Debug)]
pub(crate) struct Layer<B: Backend> {
    /// In the order of [`MATRICES`].
    pub(super) matrices: [Projection<B>; 7],
    /// In the order of [`NORMS`], the last two where heads are normalized.
    pub(super) norms: Vec<RmsNorm<B>>,
    heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_width: usize,
    /// How many keys a query sees at most.
    pub(super) window: Option<usize>,
}

impl<B: Fp8Matmul> Layer<B> {
    /// Reads layer `index`.
    pub(super) fn read(reader: &Reader<'_, B>, config: &Config, index: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let matrix = |part: &str, shape, bias| reader.projection(&name(part), shape, bias);
        let norm = |part: &str, width| norm(reader, &name(part), width, config.epsilon);
        Self::new(config, index, matrix, norm)
    }

    /// Random weights: those that write to the residual stream are smaller, the more layers there are.
    pub(super) fn random(config: &Config, index: usize, device: &B::Device) -> Self {
        let writes = WIDTH / (2.0 * config.layers() as f64).sqrt();
        let matrix = |part: &str, shape, _| {
            let width = if ["o_proj", "down_proj"].iter().any(|end| part.ends_with(end)) {
                writes
            } else {
                WIDTH
            };
            Ok(Projection::Plain(Plain::random(shape, width, device)))
        };
        let norm = |_: &str, width| {
            Ok(RmsNormConfig::new(width).with_epsilon(config.epsilon).init(device))
        };
        Self::new(config, index, matrix, norm).expect("nothing is read")
    }

    /// A layer of matrices of these names and shapes `[out, in]`, with biases or not, and norms of these names and widths.
    fn new(
        config: &Config,
        index: usize,
        matrix: impl Fn(&str, [usize; 2], bool) -> Result<Projection<B>>,
        norm: impl Fn(&str, usize) -> Result<RmsNorm<B>>,
    ) -> Result<Self> {
        let Config { hidden, intermediate, heads, kv_heads, head_width, biases, .. } = *config;
        let [queries, keys] = [heads, kv_heads].map(|heads| heads * head_width);
        let shapes = [
            ([queries, hidden], biases[0]),
            ([keys, hidden], biases[0]),
            ([keys, hidden], biases[0]),
            ([hidden, queries], biases[1]),
            ([intermediate, hidden], biases[2]),
            ([intermediate, hidden], biases[2]),
            ([hidden, intermediate], biases[2]),
        ];
        let matrices = MATRICES.iter().zip(shapes);
        let matrices = matrices.map(|(part, (shape, bias))| matrix(part, shape, bias));
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        let widths = [hidden, hidden, head_width, head_width];
        let norms = NORMS.iter().zip(widths).take(if config.head_norms { 4 } else { 2 });
        Ok(Self {
            matrices: matrices.try_into().expect("as many as there are names"),
            norms: norms.map(|(part, width)| norm(part, width)).collect::<Result<_>>()?,
            heads,
            kv_heads,
            head_width,
            window: config.windows[index],
        })
    }

    /// `[batch, tokens, hidden]` to the same, in operations of the framework. Without a cache the tokens are all that there is.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        step: &Step<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let [.., gate, up, down] = &self.matrices;
        let x = x.clone() + self.attention(self.norms[0].forward(x), step, cache);
        let input = self.norms[1].forward(x.clone());
        x + down.forward(silu(gate.forward(input.clone())) * up.forward(input))
    }

    fn attention(
        &self,
        x: Tensor<B, 3>,
        step: &Step<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let [batch, tokens, _] = x.dims();
        let split =
            |y: Tensor<B, 3>| y.reshape([batch as i64, tokens as i64, -1, self.head_width as i64]);
        let turned = |x: Tensor<B, 4>, norm: usize| {
            step.turns.turn(match self.norms.get(norm) {
                Some(norm) => norm.forward(x),
                None => x,
            })
        };
        let [query, key, value, output, ..] = &self.matrices;
        let query = turned(split(query.forward(x.clone())), 2);
        let key = turned(split(key.forward(x.clone())), 3).swap_dims(1, 2);
        let value = split(value.forward(x)).swap_dims(1, 2);

        let before = cache.as_ref().map_or(0, |cache| cache.length());
        // What is before the window of the first query is read by none.
        let first = self.window.map_or(0, |window| (before + 1).saturating_sub(window));
        let [keys, values] = match cache {
            Some(cache) => cache.extend([key, value], first, step.limit),
            None => [key, value].map(CacheTensor::Float),
        };
        let device = query.device();
        let mask = |window| hidden_by_window(window, before..before + tokens, first, &device);
        let alone = tokens == 1;
        let options = AttentionOptions {
            // A query that is alone sees all keys that there are, those of its window.
            causal: !alone,
            mask: self.window.filter(|_| !alone).map(mask),
            mask_pad: step
                .padding
                .clone()
                .map(|keys| keys.narrow(1, first, before + tokens - first)),
            ..AttentionOptions::default()
        };
        let query = match alone {
            // Heads that share keys become queries of one head: keys are read once.
            true => {
                query.reshape([batch, self.kv_heads, self.heads / self.kv_heads, self.head_width])
            }
            false => query.swap_dims(1, 2),
        };
        let heads = match (keys, values) {
            (CacheTensor::Fp8(keys), CacheTensor::Fp8(values)) => {
                attention_to_fp8(query, &keys, &values, options)
            }
            (CacheTensor::Float(keys), CacheTensor::Float(values)) => {
                attention(query, keys, values, options)
            }
            _ => unreachable!("both are of the cache's type"),
        };
        let heads = if alone { heads } else { heads.swap_dims(1, 2) };
        output.forward(heads.reshape([batch as i64, tokens as i64, -1]))
    }
}

/// Which keys from `first` on are out of a query's window: `[1, 1, queries, keys]`.
fn hidden_by_window<B: Backend>(
    window: usize,
    queries: Range<usize>,
    first: usize,
    device: &B::Device,
) -> Tensor<B, 4, Bool> {
    let shape = [1, 1, queries.len(), queries.end - first];
    let keys = first..queries.end;
    let hidden = queries.flat_map(|query| keys.clone().map(move |key| key + window <= query));
    Tensor::from_data(TensorData::new(hidden.collect::<Vec<bool>>(), shape), device)
}

/// Which of so many keys are padding: `[batch, keys]`; none where none is.
pub(super) fn hidden_padding<B: Backend>(
    padding: &[usize],
    keys: usize,
    device: &B::Device,
) -> Option<Tensor<B, 2, Bool>> {
    let hidden = padding.iter().flat_map(|row| (0..keys).map(move |key| key < *row));
    let mask = || TensorData::new(hidden.collect::<Vec<bool>>(), [padding.len(), keys]);
    padding.iter().any(|row| *row > 0).then(|| Tensor::from_data(mask(), device))
}

/// A norm of this name.
pub(super) fn norm<B: Fp8Matmul>(
    reader: &Reader<'_, B>,
    name: &str,
    width: usize,
    epsilon: f64,
) -> Result<RmsNorm<B>> {
    let norm = RmsNormConfig::new(width).with_epsilon(epsilon).init(reader.device);
    Ok(RmsNorm { gamma: reader.vector(&format!("{name}.weight"), width)?, ..norm })
}
