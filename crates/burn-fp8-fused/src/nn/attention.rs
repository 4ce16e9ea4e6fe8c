//! Attention of several heads.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay};
use burn::nn::attention::MultiHeadAttention;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Tensor};
use burn_fp8_core::{AttentionPrecision, AttentionShape, Dropout};

use crate::Graph;
use crate::ops::{AttentionOptions, attention};

/// How to make an [`FusedAttention`]: Burn's `MultiHeadAttentionConfig`, with what this one has beside.
#[derive(Config, Debug)]
pub struct FusedAttentionConfig {
    /// The size of input and output features.
    pub d_model: usize,
    /// Heads of queries; they divide `d_model`.
    pub n_heads: usize,
    /// Heads of keys and values, which divide those of queries: as many where there is none.
    pub kv_heads: Option<usize>,
    /// The probability that a probability is dropped in training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether a row sees those before it and itself alone.
    #[config(default = false)]
    pub causal: bool,
    /// Which numbers the products of attention multiply.
    #[config(default = "AttentionPrecision::High")]
    pub precision: AttentionPrecision,
    /// How the layers are initialized: that of `MultiHeadAttentionConfig`.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / f64::sqrt(3.0), fan_out_only: false}"
    )]
    pub initializer: Initializer,
}

impl FusedAttentionConfig {
    /// New layers.
    ///
    /// # Panics
    /// Where the heads do not divide `d_model`, those of keys do not divide those of queries, heads are wider than 256, or the dropout is not in
    /// `[0, 1)`.
    pub fn init<B: Backend>(&self, device: &B::Device) -> FusedAttention<B> {
        let Self { d_model, n_heads, dropout, causal, .. } = *self;
        let kv_heads = self.kv_heads.unwrap_or(n_heads);
        let width = AttentionShape::head_width(d_model, n_heads, kv_heads)
            .unwrap_or_else(|error| panic!("{error}"));
        if let Err(error) = Dropout::new(dropout, 0) {
            panic!("{error}");
        }
        let linear = |outputs: usize| {
            LinearConfig::new(d_model, outputs)
                .with_initializer(self.initializer.clone())
                .init(device)
        };
        FusedAttention {
            query: linear(d_model),
            key: linear(kv_heads * width),
            value: linear(kv_heads * width),
            output: linear(d_model),
            n_heads,
            kv_heads,
            dropout,
            causal,
            precision: self.precision,
        }
    }
}

/// Attention of several heads, in the place of Burn's `MultiHeadAttention`: the same parameters by the same names, so that its records load.
///
/// The scores are computed one tile at a time, forward and backward, and never kept: there are no weights to return. Where this one differs:
///
/// | | `MultiHeadAttention` | here |
/// |---|---|---|
/// | dropout | on scores, before the softmax | on probabilities, as in PyTorch and in the paper |
/// | a masked score | -10,000 | -∞ |
/// | a row that sees nothing | the mean of all values | 0 |
/// | a causal mask | a tensor | [`causal`](Self::causal), which costs half |
/// | heads of keys and values | as many as of queries | may be fewer |
///
/// The four linear layers are those of `burn::nn`: in FP8 on an `Fp8Backend`, as its configuration says. The products of attention
/// itself are in f32 unless [`precision`](Self::precision) says otherwise, whatever the filter says.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::AttentionPrecision;
/// use burn_fp8_fused::nn::{AttentionInput, FusedAttentionConfig};
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let config = FusedAttentionConfig::new(64, 4).with_causal(true);
/// let layer = config.with_precision(AttentionPrecision::Bf16).init::<B>(&device);
/// let x = Tensor::random([2, 10, 64], Distribution::Default, &device);
/// assert_eq!(layer.forward(AttentionInput::self_attn(x)).dims(), [2, 10, 64]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct FusedAttention<B: Backend> {
    /// From input features to queries.
    pub query: Linear<B>,
    /// From input features to keys.
    pub key: Linear<B>,
    /// From input features to values.
    pub value: Linear<B>,
    /// From all heads to output features.
    pub output: Linear<B>,
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// The probability that a probability is dropped in training.
    pub dropout: f64,
    /// Whether a row sees those before it and itself alone.
    pub causal: bool,
    /// Which numbers the products of attention multiply.
    #[module(skip)]
    pub precision: AttentionPrecision,
}

/// What [`FusedAttention::forward`] takes, built as Burn's `MhaInput` is.
#[derive(Clone, Debug)]
pub struct AttentionInput<B: Backend> {
    query: Tensor<B, 3>,
    key: Tensor<B, 3>,
    value: Tensor<B, 3>,
    mask_pad: Option<Tensor<B, 2, Bool>>,
    mask_attn: Option<Tensor<B, 3, Bool>>,
}

impl<B: Backend> AttentionInput<B> {
    /// Queries, keys and values from one tensor `[batch, length, d_model]`.
    pub fn self_attn(tensor: Tensor<B, 3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Queries from `[batch, queries, d_model]`, keys and values from `[batch, keys, d_model]`.
    pub fn new(query: Tensor<B, 3>, key: Tensor<B, 3>, value: Tensor<B, 3>) -> Self {
        Self { query, key, value, mask_pad: None, mask_attn: None }
    }

    /// Keys that no query sees, where it is true: `[batch, keys]`.
    pub fn mask_pad(self, mask_pad: Tensor<B, 2, Bool>) -> Self {
        Self { mask_pad: Some(mask_pad), ..self }
    }

    /// Where it is true, no head of the query sees the key: `[batch, queries, keys]`.
    pub fn mask_attn(self, mask_attn: Tensor<B, 3, Bool>) -> Self {
        Self { mask_attn: Some(mask_attn), ..self }
    }
}

/// The same parameters, without a causal mask.
///
/// # Panics
/// Where the softmax is Burn's `quiet_softmax`, which there is none of here.
impl<B: Backend> From<MultiHeadAttention<B>> for FusedAttention<B> {
    fn from(layer: MultiHeadAttention<B>) -> Self {
        let MultiHeadAttention { query, key, value, output, dropout, n_heads, .. } = layer;
        assert!(
            !layer.quiet_softmax,
            "attention with `quiet_softmax` cannot be fused: leave it as it is"
        );
        Self {
            query,
            key,
            value,
            output,
            n_heads,
            kv_heads: n_heads,
            dropout: dropout.prob,
            causal: false,
            precision: AttentionPrecision::High,
        }
    }
}

impl<B: Graph> FusedAttention<B> {
    /// The context `[batch, queries, d_model]`.
    ///
    /// In training, on a backend with gradients, the seed of dropout comes from the backend's generator: `B::seed` repeats it.
    ///
    /// # Panics
    /// Where shapes do not fit each other.
    pub fn forward(&self, input: AttentionInput<B>) -> Tensor<B, 3> {
        let AttentionInput { query, key, value, mask_pad, mask_attn } = input;
        let options = AttentionOptions {
            causal: self.causal,
            mask_pad,
            mask: mask_attn.map(|mask| mask.unsqueeze_dim(1)),
            precision: self.precision,
            ..Default::default()
        };
        let options = options.with_dropout(self.dropout, &query.device());
        let q = heads(self.query.forward(query), self.n_heads);
        let k = heads(self.key.forward(key), self.kv_heads);
        let v = heads(self.value.forward(value), self.kv_heads);
        let context = attention(q, k, v, options).swap_dims(1, 2);
        let [batch, queries, heads, width] = context.dims();
        self.output.forward(context.reshape([batch, queries, heads * width]))
    }
}

/// `[batch, length, heads · width]` as `[batch, heads, length, width]`, copying nothing.
fn heads<B: Backend>(x: Tensor<B, 3>, heads: usize) -> Tensor<B, 4> {
    let [batch, length, features] = x.dims();
    x.reshape([batch, length, heads, features / heads]).swap_dims(1, 2)
}

impl<B: Backend> ModuleDisplay for FusedAttention<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("n_heads", &self.n_heads)
            .add("kv_heads", &self.kv_heads)
            .add("dropout", &self.dropout)
            .add("causal", &self.causal)
            .add("precision", &self.precision.name().to_owned())
            .optional()
    }
}
