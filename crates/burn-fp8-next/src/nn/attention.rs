//! Attention of several heads.

use burn::config::Config;
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Bool, Device, Tensor};
use burn_fp8_core::{AttentionPrecision, AttentionShape, Dropout};

use super::Fp8Linear;
use crate::ops::{AttentionOptions, attention};

/// How to make an [`Fp8Attention`].
#[derive(Config, Debug)]
pub struct Fp8AttentionConfig {
    /// The size of input and output features.
    pub d_model: usize,
    /// Heads of queries; they divide `d_model`.
    pub n_heads: usize,
    /// Heads of keys and values, which divide those of queries: as many where there is none.
    pub kv_heads: Option<usize>,
    /// Whether a row sees those before it and itself alone.
    #[config(default = false)]
    pub causal: bool,
    /// Which numbers the products of attention multiply.
    #[config(default = "AttentionPrecision::High")]
    pub precision: AttentionPrecision,
}

impl Fp8AttentionConfig {
    /// New layers, initialized as [`LinearConfig`] does.
    ///
    /// # Panics
    /// Where the heads do not divide `d_model`, those of keys do not divide those of queries, or heads are wider than 256.
    pub fn init(&self, device: &Device) -> Fp8Attention {
        let Self { d_model, n_heads, causal, precision, .. } = *self;
        let kv_heads = self.kv_heads.unwrap_or(n_heads);
        let width = AttentionShape::head_width(d_model, n_heads, kv_heads)
            .unwrap_or_else(|error| panic!("{error}"));
        let linear = |outputs: usize| LinearConfig::new(d_model, outputs).init(device).into();
        Fp8Attention {
            query: linear(d_model),
            key: linear(kv_heads * width),
            value: linear(kv_heads * width),
            output: linear(d_model),
            n_heads,
            kv_heads,
            causal,
            precision,
        }
    }
}

/// Attention of several heads, in the place of Burn's `MultiHeadAttention`: the same parameters by the same names, so that its records load. Its four linear
/// layers are [`Fp8Linear`], and the scores are computed one tile at a time, forward and backward, and never kept: there are no weights to return.
///
/// A masked score is -∞, and a row that sees nothing gives 0, where Burn's has -10,000 and the mean of all values. Burn's drops scores before the softmax; here
/// probabilities are dropped, by the [`Dropout`] that a call is given.
#[derive(Module, Debug)]
pub struct Fp8Attention {
    /// From input features to queries.
    pub query: Fp8Linear,
    /// From input features to keys.
    pub key: Fp8Linear,
    /// From input features to values.
    pub value: Fp8Linear,
    /// From all heads to output features.
    pub output: Fp8Linear,
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Whether a row sees those before it and itself alone.
    pub causal: bool,
    /// Which numbers the products of attention multiply.
    #[module(skip)]
    pub precision: AttentionPrecision,
}

/// What [`Fp8Attention::forward`] takes, built as Burn's `MhaInput` is.
#[derive(Clone, Debug)]
pub struct AttentionInput {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
    dropout: Option<Dropout>,
}

impl AttentionInput {
    /// Queries, keys and values from one tensor `[batch, length, d_model]`.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Queries from `[batch, queries, d_model]`, keys and values from `[batch, keys, d_model]`.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self { query, key, value, mask_pad: None, mask_attn: None, dropout: None }
    }

    /// Keys that no query sees, where it is true: `[batch, keys]`.
    pub fn mask_pad(self, mask_pad: Tensor<2, Bool>) -> Self {
        Self { mask_pad: Some(mask_pad), ..self }
    }

    /// Where it is true, no head of the query sees the key: `[batch, queries, keys]`.
    pub fn mask_attn(self, mask_attn: Tensor<3, Bool>) -> Self {
        Self { mask_attn: Some(mask_attn), ..self }
    }

    /// Which probabilities become 0: in training, with a seed of its own each time.
    pub fn dropout(self, dropout: Dropout) -> Self {
        Self { dropout: Some(dropout), ..self }
    }
}

impl Fp8Attention {
    /// The context `[batch, queries, d_model]`.
    ///
    /// # Panics
    /// Where shapes do not fit each other, and as [`attention`] does.
    pub fn forward(&self, input: AttentionInput) -> Tensor<3> {
        let AttentionInput { query, key, value, mask_pad, mask_attn, dropout } = input;
        let options = AttentionOptions {
            causal: self.causal,
            mask_pad,
            mask: mask_attn.map(|mask| mask.unsqueeze_dim(1)),
            dropout,
            precision: self.precision,
            ..Default::default()
        };
        let q = heads(self.query.forward(query), self.n_heads);
        let k = heads(self.key.forward(key), self.kv_heads);
        let v = heads(self.value.forward(value), self.kv_heads);
        let context = attention(q, k, v, options).swap_dims(1, 2);
        let [batch, queries, heads, width] = context.dims();
        self.output.forward(context.reshape([batch, queries, heads * width]))
    }
}

/// `[batch, length, heads · width]` as `[batch, heads, length, width]`, copying nothing.
fn heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, features] = x.dims();
    x.reshape([batch, length, heads, features / heads]).swap_dims(1, 2)
}
