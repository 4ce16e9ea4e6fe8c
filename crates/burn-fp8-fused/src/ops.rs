//! The operations on tensors.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, Tensor, TensorPrimitive};
use burn_fp8_core::{AttentionPrecision, Dropout, MlpActivation, Pointwise};

use crate::engine::{Graph, Target};
use crate::fused::{self, Attention, AttentionOf};

/// What [`attention`] does beside multiplying: nothing by default.
#[derive(Clone, Debug)]
pub struct AttentionOptions<B: Backend> {
    /// What scores are multiplied by; one over the square root of the width of queries where there is none.
    pub scale: Option<f64>,
    /// Whether the last query sees all keys, the one before it all but the last, and so on: with as many keys as queries, none sees what comes after it.
    pub causal: bool,
    /// Scores become `cap · tanh(score / cap)`; positive.
    pub softcap: Option<f64>,
    /// What is added to scores, capped ones: `[batch, heads, queries, keys]`, of which dimensions may be 1. Gradients reach it; then whole scores are
    /// computed in the backward pass.
    pub bias: Option<Tensor<B, 4>>,
    /// Keys that no query sees, where it is true: `[batch, keys]`.
    pub mask_pad: Option<Tensor<B, 2, Bool>>,
    /// Where it is true, the query does not see the key: `[batch, heads, queries, keys]`, of which dimensions may be 1.
    pub mask: Option<Tensor<B, 4, Bool>>,
    /// Which probabilities become 0. The same seed gives the same bits, whatever runs it.
    pub dropout: Option<Dropout>,
    /// Which numbers are multiplied. On an `Fp8Backend` where FP8 is switched off, f32 whatever this says.
    pub precision: AttentionPrecision,
}

impl<B: Backend> Default for AttentionOptions<B> {
    fn default() -> Self {
        Self {
            scale: None,
            causal: false,
            softcap: None,
            bias: None,
            mask_pad: None,
            mask: None,
            dropout: None,
            precision: AttentionPrecision::High,
        }
    }
}

impl<B: Backend> AttentionOptions<B> {
    /// The same options with dropout of this probability in training, on a backend with gradients; without it elsewhere. The seed comes from the
    /// backend's generator, which `B::seed` sets: reading it waits for the device. On other backends than Flex the decisions are made on the host.
    ///
    /// # Panics
    /// Where the probability is not in `[0, 1)`.
    pub fn with_dropout(self, probability: f64, device: &B::Device) -> Self {
        Self { dropout: draw::<B>(probability, device), ..self }
    }
}

impl<B: Graph> AttentionOptions<B> {
    /// What the options ask for of queries `[batch, heads, queries, width]`.
    pub fn into_attention(self, [.., width]: [usize; 4]) -> AttentionOf<B> {
        let AttentionOptions { scale, causal, softcap, bias, mask_pad, mask, dropout, precision } =
            self;
        let scale = scale.unwrap_or(1.0 / (width.max(1) as f64).sqrt());
        let pad = mask_pad.map(|mask| mask.unsqueeze_dims(&[1, 1]));
        Attention {
            scale: scale as f32,
            causal,
            softcap: softcap.map(|cap| cap as f32),
            bias: bias.map(primitive),
            masks: pad.into_iter().chain(mask).map(Tensor::into_primitive).collect(),
            dropout,
            precision,
            target: Target::Emulation(None),
            watch: None,
        }
    }
}

/// `softmax(q · kᵀ · scale) · v`, one tile of scores at a time where the backend can (Flex): no scores are kept, forward or backward.
///
/// `q` is `[batch, heads, queries, width]`, `k` `[batch, kv_heads, keys, width]` and `v` `[batch, kv_heads, keys, value width]`; `kv_heads` divides `heads`, and each
/// head of keys serves neighbouring heads of queries. Heads need not be contiguous: `[batch, length, heads, width]` with its dimensions swapped is
/// read as it lies. The result is `[batch, heads, queries, value width]`, of the type of `q`; keys and values, those of a cache say, may be of another: on Flex bf16
/// is converted a tile at a time. Sums and softmax are f32.
///
/// A query that sees no key gives 0, and NaN stays in its row. On other backends than Flex the same is computed in tensor operations, with scores in
/// memory; rounding to bf16 needs one that has bf16.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::AttentionPrecision;
/// use burn_fp8_fused::ops::{AttentionOptions, attention};
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let heads = |count| Tensor::<B, 4>::random([2, count, 10, 32], Distribution::Default, &device);
/// let (q, k, v) = (heads(8).require_grad(), heads(2), heads(2));
/// let options =
///     AttentionOptions { causal: true, precision: AttentionPrecision::Bf16, ..Default::default() };
/// let grads = attention(q.clone(), k, v, options).sum().backward();
/// assert_eq!(q.grad(&grads).unwrap().dims(), [2, 8, 10, 32]);
/// ```
///
/// # Panics
/// Where shapes do not fit each other, heads are wider than 256, the scale is not finite, or the softcap not positive; with bf16 on a backend
/// without it; on an `Fp8Backend` with FP8 where the configuration asks for native execution, which attention in FP8 has on matrix units of CPUs alone.
///
/// Source: T. Dao, "FlashAttention-2", 2023; grouped heads as J. Ainslie et al., "GQA", 2023.
pub fn attention<B: Graph>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: AttentionOptions<B>,
) -> Tensor<B, 4> {
    let attention = options.into_attention(q.dims());
    float(fused::attention::<B>([q, k, v].map(primitive), attention, &B::settings()))
}

/// [`attention`] of queries, keys and values side by side, as one linear layer gives them: `qkv` is `[batch, length, heads + 2 · kv_heads, width]`, heads of
/// queries, then those of keys, then those of values. On Flex nothing is copied apart; one gradient comes back. The result is `[batch, heads, length, width]`, of the type of `qkv`.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::ops::{AttentionOptions, self_attention};
///
/// type B = Autodiff<Flex>;
/// // A layer of 10 tokens with 8 heads of queries, 2 of keys and 2 of values gives [2, 10, 12 · 32].
/// let layer = Tensor::<B, 3>::random([2, 10, 384], Distribution::Default, &Default::default());
/// let qkv = layer.reshape([2, 10, 12, 32]).require_grad();
/// let y = self_attention(qkv.clone(), 2, AttentionOptions { causal: true, ..Default::default() });
/// assert_eq!(y.dims(), [2, 8, 10, 32]);
/// assert_eq!(qkv.grad(&y.sum().backward()).unwrap().dims(), [2, 10, 12, 32]);
/// ```
///
/// # Panics
/// As [`attention`], and where no head is left for queries.
pub fn self_attention<B: Graph>(
    qkv: Tensor<B, 4>,
    kv_heads: usize,
    options: AttentionOptions<B>,
) -> Tensor<B, 4> {
    let attention = options.into_attention(qkv.dims());
    float(fused::self_attention::<B>(primitive(qkv), kv_heads, attention, &B::settings()))
}

/// `x · (1 + erf(x / √2)) / 2`, as `burn::tensor::activation::gelu`: one operation forward and one backward, in f32, on all threads of Flex.
///
/// `x` is of any shape and float type, which the result has.
pub fn gelu<B: Graph, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    float(fused::pointwise::<B>(Pointwise::Gelu, primitive(x), &B::settings()))
}

/// `x / (1 + e⁻ˣ)`, as `burn::tensor::activation::silu`, also called swish: one operation as [`gelu`] is.
///
/// `x` is of any shape and float type, which the result has.
pub fn silu<B: Graph, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    float(fused::pointwise::<B>(Pointwise::Silu, primitive(x), &B::settings()))
}

/// `act(gate) · up`, the hidden features of a gated MLP: one operation as [`gelu`] is, which keeps both for the backward pass and nothing else. With SiLU it is SwiGLU
/// (N. Shazeer, "GLU variants improve transformer", 2020).
///
/// `gate` and `up` are of one shape and float type, which the result has.
///
/// # Panics
/// Where shapes or types differ.
pub fn gated<B: Graph, const D: usize>(
    activation: MlpActivation,
    gate: Tensor<B, D>,
    up: Tensor<B, D>,
) -> Tensor<B, D> {
    let operands = [gate, up].map(primitive);
    float(fused::gated::<B>(activation, operands, &B::settings()))
}

/// `x / √(mean(x²) + epsilon) · gamma` in each row, as `burn::nn::RmsNorm`: one operation forward and one backward, in f32, on all threads of Flex, which keeps its
/// input alone.
///
/// `x` is `[…, N]` and `gamma` `[N]`, of one float type, which the result has. NaN stays in its row; a row of zeros gives zeros.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::ops::rms_norm;
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let x = Tensor::<B, 3>::random([2, 10, 64], Distribution::Default, &device).require_grad();
/// let y = rms_norm(x.clone(), Tensor::ones([64], &device), 1e-5);
/// assert_eq!(x.grad(&y.sum().backward()).unwrap().dims(), [2, 10, 64]);
/// ```
///
/// # Panics
/// Where gamma is not `[N]`, or of another type than `x`.
///
/// Source: B. Zhang and R. Sennrich, "Root mean square layer normalization", 2019.
pub fn rms_norm<B: Graph, const D: usize>(
    x: Tensor<B, D>,
    gamma: Tensor<B, 1>,
    epsilon: f64,
) -> Tensor<B, D> {
    float(fused::rms_norm::<B>(primitive(x), primitive(gamma), epsilon, &B::settings()))
}

/// Drops elements with this probability in training, on a backend with gradients, and multiplies the others by one over the probability to be kept;
/// `x` as it is elsewhere. As `burn::nn::Dropout`, by a generator whose decisions are computed again in the backward pass, not kept.
///
/// The seed comes from the backend's generator, which `B::seed` sets: reading it waits for the device. On other backends than Flex the decisions are made on the
/// host, forward and backward, and handed to the device.
///
/// # Panics
/// Where the probability is not in `[0, 1)`.
pub fn dropout<B: Graph, const D: usize>(x: Tensor<B, D>, probability: f64) -> Tensor<B, D> {
    match draw::<B>(probability, &x.device()) {
        Some(dropout) => {
            let operation = Pointwise::Dropout(dropout);
            float(fused::pointwise::<B>(operation, primitive(x), &B::settings()))
        }
        None => x,
    }
}

/// Dropout of this probability, with a seed from the backend's generator; none at 0, or on a backend without gradients.
fn draw<B: Backend>(probability: f64, device: &B::Device) -> Option<Dropout> {
    if probability == 0.0 || !B::ad_enabled(device) {
        return None;
    }
    let dropout = Dropout::new(probability, fused::seed::<B>(device));
    Some(dropout.unwrap_or_else(|error| panic!("{error}")))
}

fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
