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

use super::cache::{Held, LayerCache};
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

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub(crate) struct Layer<B: Backend> {
    input_norm: RmsNorm<B>,
    attention: Attention<B>,
    mlp_norm: RmsNorm<B>,
    gate: Projection<B>,
    up: Projection<B>,
    down: Projection<B>,
}

impl<B: Fp8Matmul> Layer<B> {
    /// Reads layer `index`.
    pub(super) fn read(reader: &Reader<'_, B>, config: &Config, index: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| norm(reader, &name(part), config.hidden, config.epsilon);
        let (narrow, wide, bias) = (config.hidden, config.intermediate, config.biases[2]);
        let mlp = |part: &str, shape| reader.projection(&name(&format!("mlp.{part}")), shape, bias);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::read(reader, config, index)?,
            mlp_norm: norm("post_attention_layernorm")?,
            gate: mlp("gate_proj", [wide, narrow])?,
            up: mlp("up_proj", [wide, narrow])?,
            down: mlp("down_proj", [narrow, wide])?,
        })
    }

    /// Random weights: those that write to the residual stream are smaller, the more layers there are.
    pub(super) fn random(config: &Config, index: usize, device: &B::Device) -> Self {
        let Config { hidden, intermediate, heads, kv_heads, head_width, epsilon, .. } = *config;
        let norm = |width| RmsNormConfig::new(width).with_epsilon(epsilon).init(device);
        let plain = |shape, width| Projection::Plain(Plain::random(shape, width, device));
        let writes = WIDTH / (2.0 * config.layers() as f64).sqrt();
        let head_norm = || config.head_norms.then(|| norm(head_width));
        Self {
            input_norm: norm(hidden),
            attention: Attention {
                query: plain([heads * head_width, hidden], WIDTH),
                key: plain([kv_heads * head_width, hidden], WIDTH),
                value: plain([kv_heads * head_width, hidden], WIDTH),
                output: plain([hidden, heads * head_width], writes),
                query_norm: head_norm(),
                key_norm: head_norm(),
                heads,
                kv_heads,
                head_width,
                window: config.windows[index],
            },
            mlp_norm: norm(hidden),
            gate: plain([intermediate, hidden], WIDTH),
            up: plain([intermediate, hidden], WIDTH),
            down: plain([hidden, intermediate], writes),
        }
    }

    /// Its matrices by their names in a checkpoint, without `model.layers.N`.
    pub(crate) fn matrices(&self) -> [(&'static str, &Projection<B>); 7] {
        let Attention { query, key, value, output, .. } = &self.attention;
        [
            ("self_attn.q_proj", query),
            ("self_attn.k_proj", key),
            ("self_attn.v_proj", value),
            ("self_attn.o_proj", output),
            ("mlp.gate_proj", &self.gate),
            ("mlp.up_proj", &self.up),
            ("mlp.down_proj", &self.down),
        ]
    }

    /// The same, to be changed.
    pub(super) fn matrices_mut(&mut self) -> [(&'static str, &mut Projection<B>); 7] {
        let Attention { query, key, value, output, .. } = &mut self.attention;
        [
            ("self_attn.q_proj", query),
            ("self_attn.k_proj", key),
            ("self_attn.v_proj", value),
            ("self_attn.o_proj", output),
            ("mlp.gate_proj", &mut self.gate),
            ("mlp.up_proj", &mut self.up),
            ("mlp.down_proj", &mut self.down),
        ]
    }

    /// Its norms by their names, likewise.
    pub(crate) fn norms(&self) -> Vec<(&'static str, &RmsNorm<B>)> {
        let Attention { query_norm, key_norm, .. } = &self.attention;
        let of_heads = [("self_attn.q_norm", query_norm), ("self_attn.k_norm", key_norm)];
        let of_heads = of_heads.into_iter().filter_map(|(name, norm)| Some((name, norm.as_ref()?)));
        let of_layer =
            [("input_layernorm", &self.input_norm), ("post_attention_layernorm", &self.mlp_norm)];
        of_layer.into_iter().chain(of_heads).collect()
    }

    /// The same, to be changed.
    pub(super) fn norms_mut(&mut self) -> Vec<(&'static str, &mut RmsNorm<B>)> {
        let Attention { query_norm, key_norm, .. } = &mut self.attention;
        let of_heads = [("self_attn.q_norm", query_norm), ("self_attn.k_norm", key_norm)];
        let of_heads = of_heads.into_iter().filter_map(|(name, norm)| Some((name, norm.as_mut()?)));
        let [input, mlp] = ["input_layernorm", "post_attention_layernorm"];
        let of_layer = [(input, &mut self.input_norm), (mlp, &mut self.mlp_norm)];
        of_layer.into_iter().chain(of_heads).collect()
    }

    /// The width of its heads, those of keys, and how many keys a query sees at most.
    pub(super) fn heads(&self) -> (usize, usize, Option<usize>) {
        (self.attention.head_width, self.attention.kv_heads, self.attention.window)
    }

    /// What is added to mean squares.
    pub(super) fn epsilon(&self) -> f32 {
        self.input_norm.epsilon as f32
    }

    /// `[batch, tokens, hidden]` to the same, in operations of the framework. Without a cache the tokens are all that there is.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        step: &Step<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let x = x.clone() + self.attention.forward(self.input_norm.forward(x), step, cache);
        let input = self.mlp_norm.forward(x.clone());
        let hidden = silu(self.gate.forward(input.clone())) * self.up.forward(input);
        x + self.down.forward(hidden)
    }

    pub(super) fn bytes(&self) -> usize {
        self.matrices().iter().map(|(_, matrix)| matrix.bytes()).sum()
    }
}

/// Causal attention of grouped heads, with rotary embeddings.
#[derive(Module, Debug)]
struct Attention<B: Backend> {
    query: Projection<B>,
    key: Projection<B>,
    value: Projection<B>,
    output: Projection<B>,
    query_norm: Option<RmsNorm<B>>,
    key_norm: Option<RmsNorm<B>>,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    window: Option<usize>,
}

impl<B: Fp8Matmul> Attention<B> {
    fn read(reader: &Reader<'_, B>, config: &Config, index: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.self_attn.{part}");
        let Config { hidden, heads, kv_heads, head_width, biases, .. } = *config;
        let read = |part: &str, shape, bias| reader.projection(&name(part), shape, bias);
        let head_norm = |part: &str| match config.head_norms {
            true => norm(reader, &name(part), head_width, config.epsilon).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            query: read("q_proj", [heads * head_width, hidden], biases[0])?,
            key: read("k_proj", [kv_heads * head_width, hidden], biases[0])?,
            value: read("v_proj", [kv_heads * head_width, hidden], biases[0])?,
            output: read("o_proj", [hidden, heads * head_width], biases[1])?,
            query_norm: head_norm("q_norm")?,
            key_norm: head_norm("k_norm")?,
            heads,
            kv_heads,
            head_width,
            window: config.windows[index],
        })
    }

    fn forward(
        &self,
        x: Tensor<B, 3>,
        step: &Step<B>,
        cache: Option<&mut LayerCache<B>>,
    ) -> Tensor<B, 3> {
        let [batch, tokens, _] = x.dims();
        let split =
            |y: Tensor<B, 3>| y.reshape([batch as i64, tokens as i64, -1, self.head_width as i64]);
        let turned = |x: Tensor<B, 4>, norm: &Option<RmsNorm<B>>| {
            let x = match norm {
                Some(norm) => norm.forward(x),
                None => x,
            };
            step.turns.turn(x)
        };
        let query = turned(split(self.query.forward(x.clone())), &self.query_norm);
        let key = turned(split(self.key.forward(x.clone())), &self.key_norm).swap_dims(1, 2);
        let value = split(self.value.forward(x)).swap_dims(1, 2);

        let before = cache.as_ref().map_or(0, |cache| cache.length());
        // What is before the window of the first query is read by none.
        let first = self.window.map_or(0, |window| (before + 1).saturating_sub(window));
        let [keys, values] = match cache {
            Some(cache) => cache.extend([key, value], first, step.limit),
            None => [key, value].map(Held::Float),
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
            (Held::Fp8(keys), Held::Fp8(values)) => {
                attention_to_fp8(query, &keys, &values, options)
            }
            (Held::Float(keys), Held::Float(values)) => attention(query, keys, values, options),
            _ => unreachable!("both are of the cache's type"),
        };
        let heads = if alone { heads } else { heads.swap_dims(1, 2) };
        self.output.forward(heads.reshape([batch as i64, tokens as i64, -1]))
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
