//! One transformer block: attention and MLP, each after a LayerNorm and beside a residual connection.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::backend::Backend;
use burn_fp8::fused::ops::{self, AttentionOptions, self_attention};
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::report::named;
use burn_fp8::{AttentionPrecision, Fp8Config, Fp8Matmul};

use super::layers::{DEVIATION, Dense, LayerKind};
use crate::size::Shape;

/// A pre-norm transformer block (Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019):
/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    qkv: Dense<B>,
    projection: Dense<B>,
    mlp_norm: LayerNorm<B>,
    up: Dense<B>,
    down: Dense<B>,
    dropout: Dropout,
    heads: usize,
}

impl<B: Fp8Matmul> Block<B> {
    /// A block with new weights. Those of the layers that end in the residual stream are smaller by the square root of how many there
    /// are, as in GPT-2.
    pub fn new(shape: &Shape, device: &B::Device) -> Self {
        let width = shape.width;
        let residual = DEVIATION / (2.0 * shape.layers as f64).sqrt();
        Self {
            attention_norm: LayerNormConfig::new(width).init(device),
            qkv: Dense::new(width, 3 * width, DEVIATION, device),
            projection: Dense::new(width, width, residual, device),
            mlp_norm: LayerNormConfig::new(width).init(device),
            up: Dense::new(width, 4 * width, DEVIATION, device),
            down: Dense::new(4 * width, width, residual, device),
            dropout: DropoutConfig::new(shape.dropout).init(),
            heads: shape.heads,
        }
    }

    /// The block with each layer changed.
    pub fn map_layers(self, mut change: impl FnMut(LayerKind, Dense<B>) -> Dense<B>) -> Self {
        Self {
            qkv: change(LayerKind::Qkv, self.qkv),
            projection: change(LayerKind::Projection, self.projection),
            up: change(LayerKind::Up, self.up),
            down: change(LayerKind::Down, self.down),
            ..self
        }
    }

    /// The block with FP8 layers.
    pub fn with_fp8_layers(self, config: &Fp8DotGeneralConfig) -> Self {
        self.map_layers(|_, layer| layer.with_fp8(config))
    }

    /// `x` `[batch, context, width]`, the same shape out. `future` `[context, context]` is added to the scores of
    /// attention: very low where a position must not look, else 0.
    pub fn forward(&self, x: Tensor<B, 3>, future: &Tensor<B, 2>) -> Tensor<B, 3> {
        let attention = self.attention(self.attention_norm.forward(x.clone()), future);
        let projected =
            named(LayerKind::Projection.as_str(), || self.projection.forward(attention));
        let x = x + drop_out(&self.dropout, projected);
        let normed = self.mlp_norm.forward(x.clone());
        let up = named(LayerKind::Up.as_str(), || self.up.forward(normed));
        let down = named(LayerKind::Down.as_str(), || self.down.forward(gelu(up)));
        x + drop_out(&self.dropout, down)
    }

    /// Causal attention of all heads (Vaswani et al., *Attention Is All You Need*, 2017): softmax(q · kᵀ / √d) · v.
    fn attention(&self, x: Tensor<B, 3>, future: &Tensor<B, 2>) -> Tensor<B, 3> {
        let [batch, context, width] = x.dims();
        let depth = width / self.heads;
        let qkv = named(LayerKind::Qkv.as_str(), || self.qkv.forward(x));
        if let Some(precision) = Fp8Config::current().fused_attention::<B>() {
            return self.attend_as_one(qkv, precision);
        }
        // [batch, context, 3 · width] to [3, batch, heads, context, depth].
        let qkv = qkv.reshape([batch, context, 3, self.heads, depth]);
        let mut parts = qkv
            .permute([2, 0, 3, 1, 4])
            .chunk(3, 0)
            .into_iter()
            .map(|part| part.squeeze_dim::<4>(0));
        let mut part = || parts.next().expect("three chunks");
        let (q, k, v) = (part(), part(), part());
        let scores = q.matmul(k.transpose()).div_scalar((depth as f64).sqrt());
        let scores = scores.clone() + future.clone().unsqueeze().cast(scores.dtype());
        let weights = self.dropout.forward(softmax(scores, 3));
        weights.matmul(v).swap_dims(1, 2).reshape([batch, context, width])
    }

    /// The same as one operation, in this precision: no scores in memory, nothing copied into heads.
    fn attend_as_one(&self, qkv: Tensor<B, 3>, precision: AttentionPrecision) -> Tensor<B, 3> {
        let [batch, context, width] = qkv.dims();
        let width = width / 3;
        let options = AttentionOptions { causal: true, precision, ..Default::default() };
        let options = options.with_dropout(self.dropout.prob, &qkv.device());
        let qkv = qkv.reshape([batch, context, 3 * self.heads, width / self.heads]);
        let y = self_attention(qkv, self.heads, options);
        y.swap_dims(1, 2).reshape([batch, context, width])
    }
}

/// Dropout, in training: one operation, as GELU and LayerNorm of Burn are, where the configuration says so of attention.
pub(super) fn drop_out<B: Fp8Matmul, const D: usize>(
    dropout: &Dropout,
    x: Tensor<B, D>,
) -> Tensor<B, D> {
    match Fp8Config::current().fused_attention::<B>().is_some() {
        true => ops::dropout(x, dropout.prob),
        false => dropout.forward(x),
    }
}
