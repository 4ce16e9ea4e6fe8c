//! The products in FP8, as operations of Burn's tensors: `(x, weight, bias)` goes to the backend that the tensors are on, which asks the
//! configuration as [`Fp8Config`](crate::Fp8Config) says.
#![cfg_attr(
    not(any(feature = "flex", feature = "cube", feature = "remote")),
    expect(unused_variables, reason = "without a backend there is none to hand them to")
)]

#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "remote")]
use burn::backend::Remote;
use burn::backend::{Backend, Dispatch, DispatchDevice, backend_extension};
use burn::tensor::{Bool, Device, Gradients, Tensor, activation, module};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::Shape;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
#[cfg(feature = "flex")]
use burn_flex::Flex;
use burn_fp8_core::{AttentionPrecision, Dropout, Fp8Format, Pointwise, ProductKind};

use crate::engine::{self, Codes, Graph, Matrix, MatrixOf, Scalar, ScaleKind, Scales};
use crate::fused::{self, Attention};
use crate::product::{ActivationScale, delayed, frozen_layer, route};

/// What a product with a frozen weight has to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct FrozenForm {
    /// Rows and columns of the weight that share a scale; none where all do.
    pub(crate) block: Option<[usize; 2]>,
    pub(crate) kind: ScaleKind,
    pub(crate) activation: ActivationScale,
}

impl FrozenForm {
    /// The weight of these codes and scales.
    fn matrix<B: Backend>(self, codes: IntTensor<B>, scales: FloatTensor<B>) -> MatrixOf<B> {
        let scales = match self.block {
            None => Scales::One(Scalar::Device(B::float_reshape(scales, Shape::new([1])))),
            Some(block) => Scales::Grid { scales, block, kind: self.kind },
        };
        Matrix::new(Codes::Bytes(codes), scales, Fp8Format::E4M3)
    }
}

/// What attention has to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct AttentionForm {
    scale: f32,
    causal: bool,
    softcap: Option<f32>,
    dropout: Option<Dropout>,
    precision: AttentionPrecision,
    /// Whether its mask is one.
    masked: bool,
}

impl AttentionForm {
    fn with<F, M>(self, bias: Option<F>, mask: M) -> Attention<F, M> {
        let Self { scale, causal, softcap, dropout, precision, masked } = self;
        let masks = if masked { vec![mask] } else { vec![] };
        let target = engine::Target::Emulation(None);
        let watch = None;
        Attention { scale, causal, softcap, bias, masks, dropout, precision, target, watch }
    }
}

/// The products of a backend that runs them in FP8 where the configuration says so. Users call [`matmul`] and [`linear`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
pub trait Fp8Ops: Backend {
    /// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`.
    fn fp8_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x` `[…, K]` times `weight` `[K, N]`.
    fn fp8_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`.
    fn fp8_linear_with_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `x` `[…, K]` times a weight whose codes are u8 `[K, N]`, with their scales. [`nn::FrozenLinear`](crate::nn::FrozenLinear) calls it.
    fn fp8_frozen(
        x: FloatTensor<Self>,
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        form: FrozenForm,
    ) -> FloatTensor<Self>;

    /// Attention as one operation; the mask counts where the form says so. Users call [`attention`].
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        form: AttentionForm,
    ) -> FloatTensor<Self>;

    /// An operation on single elements. Users call [`gelu`], [`silu`] and [`dropout`].
    fn fused_pointwise(x: FloatTensor<Self>, operation: Pointwise) -> FloatTensor<Self>;

    /// Attention with a bias.
    fn fused_attention_with_bias(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        bias: FloatTensor<Self>,
        form: AttentionForm,
    ) -> FloatTensor<Self>;
}

/// The same way for each backend.
macro_rules! routed {
    ($(#[$attribute:meta])* impl[$($parameters:tt)*] $backend:ty) => {
        $(#[$attribute])*
        impl<$($parameters)*> Fp8Ops for $backend {
            fn fp8_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
                route::matmul::<Self>(lhs, rhs)
            }

            fn fp8_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
                route::linear::<Self>(x, weight, None)
            }

            fn fp8_linear_with_bias(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                route::linear::<Self>(x, weight, Some(bias))
            }

            fn fp8_frozen(
                x: FloatTensor<Self>,
                codes: IntTensor<Self>,
                scales: FloatTensor<Self>,
                form: FrozenForm,
            ) -> FloatTensor<Self> {
                let weight = form.matrix::<Self>(codes, scales);
                let kind = ProductKind::Linear;
                frozen_layer::forward::<Self>(kind, x, weight.clone(), None, form.activation, |_| weight)
            }

            fn fused_attention(
                q: FloatTensor<Self>,
                k: FloatTensor<Self>,
                v: FloatTensor<Self>,
                mask: BoolTensor<Self>,
                form: AttentionForm,
            ) -> FloatTensor<Self> {
                fused::attention::<Self>([q, k, v], form.with(None, mask), &route::settings())
            }

            fn fused_pointwise(x: FloatTensor<Self>, operation: Pointwise) -> FloatTensor<Self> {
                fused::pointwise::<Self>(operation, x, &route::settings())
            }

            fn fused_attention_with_bias(
                q: FloatTensor<Self>,
                k: FloatTensor<Self>,
                v: FloatTensor<Self>,
                mask: BoolTensor<Self>,
                bias: FloatTensor<Self>,
                form: AttentionForm,
            ) -> FloatTensor<Self> {
                fused::attention::<Self>([q, k, v], form.with(Some(bias), mask), &route::settings())
            }
        }
    };
}
routed!(#[cfg(feature = "flex")] impl[] Flex);
#[cfg(feature = "cube")]
crate::fp8_backend!(Cube);
routed!(#[cfg(feature = "cube")] impl[] Cube);
#[cfg(feature = "remote")]
crate::fp8_backend!(Remote);
routed!(#[cfg(feature = "remote")] impl[] Remote);
routed!(impl[B: Fp8Ops + Graph, C: CheckpointStrategy] Autodiff<B, C>);

/// Whether the products of a device are made here: on a device of ours they are in FP8 by themselves. Panics on backends without FP8 products.
pub(crate) fn is_here(device: &Device) -> bool {
    #[cfg(feature = "device")]
    if crate::device::is_ours(device) {
        return false;
    }
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => true,
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(_) => true,
        #[allow(
            unreachable_patterns,
            reason = "the application may have turned on further backends of Burn"
        )]
        _ => panic!(
            "burn-fp8-next has no FP8 products for {device:?}: turn on its feature of that backend's name, or move model and inputs to Device::flex()"
        ),
    }
}

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`, in FP8 where the configuration says so.
///
/// # Panics
/// Where the shapes do not multiply, and on devices of backends whose feature is off.
pub fn matmul<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    if !is_here(&lhs.device()) {
        return lhs.matmul(rhs);
    }
    Tensor::from_dispatch(Dispatch::fp8_matmul(lhs.into_dispatch(), rhs.into_dispatch()))
}

/// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`, in FP8 where the configuration says so.
///
/// # Panics
/// Where the shapes do not multiply, and on devices of backends whose feature is off.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if !is_here(&x.device()) {
        return module::linear(x, weight, bias);
    }
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => Dispatch::fp8_linear_with_bias(x, weight, bias.into_dispatch()),
        None => Dispatch::fp8_linear(x, weight),
    })
}

/// What [`attention`] does beside multiplying: nothing by default.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// What scores are multiplied by; one over the square root of the width of queries where there is none.
    pub scale: Option<f64>,
    /// Whether the last query sees all keys, the one before it all but the last, and so on: with as many keys as queries, none sees what comes after it.
    pub causal: bool,
    /// Scores become `cap · tanh(score / cap)`; positive.
    pub softcap: Option<f64>,
    /// What is added to scores, capped ones: f32 `[batch, heads, queries, keys]`, of which dimensions may be 1. Gradients reach it.
    pub bias: Option<Tensor<4>>,
    /// Keys that no query sees, where it is true: `[batch, keys]`.
    pub mask_pad: Option<Tensor<2, Bool>>,
    /// Where it is true, the query does not see the key: `[batch, heads, queries, keys]`, of which dimensions may be 1.
    pub mask: Option<Tensor<4, Bool>>,
    /// Which probabilities become 0. The same seed gives the same bits, whatever runs it.
    pub dropout: Option<Dropout>,
    /// Which numbers are multiplied. Where FP8 is switched off, as in [`high_precision`](crate::high_precision), f32 whatever this says.
    pub precision: AttentionPrecision,
}

/// `softmax(q · kᵀ · scale) · v`, one tile of scores at a time on Flex: no scores are kept, forward or backward. On other backends in tensor operations, with
/// scores in memory.
///
/// `q` is `[batch, heads, queries, width]`, `k` `[batch, kv_heads, keys, width]` and `v` `[batch, kv_heads, keys, value width]`; `kv_heads` divides `heads`. Heads need not
/// be contiguous. The result is `[batch, heads, queries, value width]`, of the type of `q`. A query that sees no key gives 0.
///
/// # Panics
/// Where shapes do not fit each other, heads are wider than 256, the scale is not finite, or the softcap not positive; with FP8 where the configuration asks
/// for native execution; on a served device, which has Burn's own attention; and on devices of backends whose feature is off.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: AttentionOptions) -> Tensor<4> {
    let AttentionOptions { scale, causal, softcap, bias, mask_pad, mask, dropout, precision } =
        options;
    assert!(
        is_here(&q.device()),
        "a served device has no attention of ours: call burn::tensor::module::attention, and have it run as one by Fp8Config::with_attention"
    );
    let [batch, .., width] = q.dims();
    let pad = mask_pad.map(|pad| {
        let [sequences, keys] = pad.dims();
        assert!(
            sequences == batch,
            "mask_pad has shape [{sequences}, {keys}], but there are {batch} sequences"
        );
        pad.reshape([batch, 1, 1, keys])
    });
    let mask = match (pad, mask) {
        (Some(pad), Some(mask)) => {
            let (of_pad, of_mask) = (pad.dims(), mask.dims());
            let shape: [usize; 4] = core::array::from_fn(|dim| of_pad[dim].max(of_mask[dim]));
            Some(pad.expand(shape).bool_or(mask.expand(shape)))
        }
        (pad, mask) => pad.or(mask),
    };
    let form = AttentionForm {
        scale: scale.unwrap_or(1.0 / (width.max(1) as f64).sqrt()) as f32,
        causal,
        softcap: softcap.map(|cap| cap as f32),
        dropout,
        precision,
        masked: mask.is_some(),
    };
    let mask = mask.unwrap_or_else(|| Tensor::empty([1, 1, 1, 1], &q.device().without_autodiff()));
    let mask = mask.into_dispatch();
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    Tensor::from_dispatch(match bias {
        Some(bias) => {
            Dispatch::fused_attention_with_bias(q, k, v, mask, bias.into_dispatch(), form)
        }
        None => Dispatch::fused_attention(q, k, v, mask, form),
    })
}

/// `x · (1 + erf(x / √2)) / 2`, as `burn::tensor::activation::gelu`: one operation forward and one backward, in f32, on all threads of Flex. On a served device
/// Burn's own, which is one operation there where the configuration says so of attention.
///
/// # Panics
/// On devices of backends whose feature is off.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match is_here(&x.device()) {
        true => {
            Tensor::from_dispatch(Dispatch::fused_pointwise(x.into_dispatch(), Pointwise::Gelu))
        }
        false => activation::gelu(x),
    }
}

/// `x / (1 + e⁻ˣ)`, as `burn::tensor::activation::silu`, also called swish: one operation as [`gelu`] is.
///
/// # Panics
/// On devices of backends whose feature is off.
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match is_here(&x.device()) {
        true => {
            Tensor::from_dispatch(Dispatch::fused_pointwise(x.into_dispatch(), Pointwise::Silu))
        }
        false => activation::silu(x),
    }
}

/// Drops what the generator decides, and multiplies the rest by one over the probability to be kept; the decisions are computed again in the backward pass,
/// not kept. The same seed gives the same bits, whatever runs it. Call it in training alone, with a seed of its own each time.
///
/// # Panics
/// On served devices, which have Burn's own dropout, and on devices of backends whose feature is off.
pub fn dropout<const D: usize>(x: Tensor<D>, dropout: Dropout) -> Tensor<D> {
    assert!(is_here(&x.device()), "a served device has no dropout of ours: use burn::nn::Dropout");
    let operation = Pointwise::Dropout(dropout);
    Tensor::from_dispatch(Dispatch::fused_pointwise(x.into_dispatch(), operation))
}

/// `loss.backward()`, with which a step of delayed scaling ends that no [`DelayedState::step`](crate::DelayedState::step) is around, and which tells a
#[cfg_attr(feature = "device", doc = "[served device](crate::device)")]
#[cfg_attr(not(feature = "device"), doc = "served device")]
/// that its products are gradients from here on.
///
/// Layers elsewhere need nothing but `loss.backward()` under every other recipe.
pub fn backward<const D: usize>(loss: Tensor<D>) -> Gradients {
    #[cfg(feature = "device")]
    let device = loss.device();
    let run = || delayed::backward(|| loss.backward());
    #[cfg(feature = "device")]
    let run = || crate::device::backward(&device, run);
    run()
}
