//! The operations, with backward steps where gradients are tracked.

use burn_backend::{
    Backend, DType, Distribution, FloatDType, Shape, TensorMetadata, tensor::FloatTensor,
};
use burn_fp8_core::{AttentionPrecision, Dropout, MlpActivation, Norm, Pointwise, Saved, Softmax};

use super::options::{AttentionOf, check_numbers, check_shapes};
use super::{attention as attend, norm, pointwise as single, softmax as rows};
use crate::engine::tensor::read;
use crate::engine::{
    Execution, Form, Fp8Engine, Graph, Manner, Requirements, Settings, Target, in_f32, nothing,
    values,
};

/// Attention of `q` `[batch, heads, queries, width]` to `k` `[batch, kv_heads, keys, width]` and `v` `[batch, kv_heads, keys, value width]`: the output
/// `[batch, heads, queries, value width]`, of the type of `q`; zeros where there is nothing to attend to. Gradients reach all three, and the bias.
///
/// # Panics
/// Where shapes do not fit, the scale is not finite or the softcap not positive; with bf16 on a backend without it; with FP8 where native execution is asked for and
/// there is no matrix unit of a CPU.
pub fn attention<B: Graph>(
    qkv: [FloatTensor<B>; 3],
    attention: AttentionOf<B>,
    settings: &Settings,
) -> FloatTensor<B> {
    let shapes = qkv.each_ref().map(|tensor| tensor.shape().dims());
    let device = crate::host::float_device::<B>(&qkv[0]);
    let attention = settled::<B>(shapes, attention, settings, &device);
    let [[batch, heads, length, width], _, [.., keys, value_width]] = shapes;
    let output = [batch, heads, length, value_width];
    let [q, k, v] = qkv.each_ref();
    if output.contains(&0) || keys * width == 0 {
        return nothing::<B, 3>([q, k, v], Shape::new(output));
    }
    let as_asked = saved::<B>(settings, &[q, k, v]);
    let run = || {
        let inner = attention.clone().map(B::value);
        let attend::Forward { output, saved } =
            attend::forward::<B::Inner>(values::<B, 3>([q, k, v]), &inner, as_asked);
        (output, saved)
    };
    match &attention.bias {
        Some(bias) => B::record([q, k, v, bias], run),
        None => B::record([q, k, v], run),
    }
}

/// The same of queries, keys and values in one tensor `[batch, length, heads + 2 · kv_heads, width]`, along its heads.
///
/// # Panics
/// As [`attention`], and where no head is left for queries.
pub fn self_attention<B: Graph>(
    qkv: FloatTensor<B>,
    kv_heads: usize,
    attention: AttentionOf<B>,
    settings: &Settings,
) -> FloatTensor<B> {
    let shape @ [batch, length, all, width] = qkv.shape().dims();
    let heads = kv_heads.checked_mul(2).and_then(|of_keys| all.checked_sub(of_keys));
    let Some(heads @ 1..) = heads else {
        panic!(
            "{shape:?} leaves no heads of queries beside {kv_heads} of keys and as many of values"
        )
    };
    let shapes = [heads, kv_heads, kv_heads].map(|heads| [batch, heads, length, width]);
    let device = crate::host::float_device::<B>(&qkv);
    let attention = settled::<B>(shapes, attention, settings, &device);
    if batch * length * width == 0 {
        return nothing::<B, 1>([&qkv], Shape::new([batch, heads, length, width]));
    }
    let as_asked = saved::<B>(settings, &[&qkv]);
    let run = || {
        let inner = attention.clone().map(B::value);
        let qkv = B::value(qkv.clone());
        let attend::Forward { output, saved } =
            attend::forward_of_one::<B::Inner>(qkv, kv_heads, &inner, as_asked);
        (output, saved)
    };
    match &attention.bias {
        Some(bias) => B::record([&qkv, bias], run),
        None => B::record([&qkv], run),
    }
}

/// An operation on single elements, of any float type, which the result has. Gradients reach `x`.
pub fn pointwise<B: Graph>(
    operation: Pointwise,
    x: FloatTensor<B>,
    settings: &Settings,
) -> FloatTensor<B> {
    let saved = saved::<B>(settings, &[&x]);
    B::record([&x], || single::forward::<B::Inner>(operation, B::value(x.clone()), saved))
}

/// A tensor of f32 whose elements are 1 with this probability and 0 otherwise, by the generator of dropout; none where there is no kernel for it.
/// The probability is rounded to a multiple of 2⁻¹⁶: none either where that is more than 0.05% of it.
pub fn bernoulli<B: Graph>(
    shape: &Shape,
    probability: f64,
    device: &B::Device,
) -> Option<FloatTensor<B>> {
    const LEAST: f64 = 1.0 / 64.0;
    if !B::FP8_ON_HOST || !(LEAST..1.0).contains(&probability) {
        return None;
    }
    let dropout = Dropout::new(1.0 - probability, seed::<B>(device)).ok()?;
    #[cfg(feature = "flex")]
    let kept = super::flex::run(shape.clone(), |shape| super::flex::kept(shape, dropout)).ok();
    #[cfg(not(feature = "flex"))]
    let kept = {
        let _ = (shape, dropout);
        None
    };
    kept.map(B::constant)
}

/// A seed of 48 bits from the backend's generator: reading it waits for the device.
pub fn seed<B: Backend>(device: &B::Device) -> u64 {
    let range = Distribution::Uniform(0.0, f64::from(1 << 24));
    let halves = B::float_random(Shape::new([2]), range, device, FloatDType::F32);
    read::<B>(halves).into_iter().fold(0, |seed, half| seed << 24 | half as u64)
}

/// Softmax of the rows of `x` `[…, N]`, or its logarithm, of any float type, which the result has. Gradients reach `x`.
pub fn softmax<B: Graph>(kind: Softmax, x: FloatTensor<B>, settings: &Settings) -> FloatTensor<B> {
    let saved = saved::<B>(settings, &[&x]);
    B::record([&x], || rows::forward::<B::Inner>(kind, B::value(x.clone()), saved))
}

/// Layer normalization of `x` `[…, N]`, of any float type, which the result has. Gradients reach all three.
///
/// # Panics
/// Where gamma or beta is not `[N]`, or of another type than `x`.
#[track_caller]
pub fn layer_norm<B: Graph>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
    settings: &Settings,
) -> FloatTensor<B> {
    normalize::<B>(Norm::Layer, x, gamma, beta, epsilon, settings)
}

/// The same without a mean and beta: normalization by the root of the mean square.
///
/// # Panics
/// As [`layer_norm`].
#[track_caller]
pub fn rms_norm<B: Graph>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    epsilon: f64,
    settings: &Settings,
) -> FloatTensor<B> {
    normalize::<B>(Norm::Rms, x, gamma, None, epsilon, settings)
}

#[track_caller]
fn normalize<B: Graph>(
    norm: Norm,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
    settings: &Settings,
) -> FloatTensor<B> {
    let saved = saved::<B>(settings, &[&x, &gamma]);
    let run = || {
        let beta = beta.clone().map(B::value);
        let [x, gamma] = values::<B, 2>([&x, &gamma]);
        norm::forward::<B::Inner>(norm, x, gamma, beta, epsilon, saved)
    };
    match &beta {
        Some(beta) => B::record([&x, &gamma, beta], run),
        None => B::record([&x, &gamma], run),
    }
}

/// `act(gate) · up`, of one shape and float type, which the result has. Gradients reach both.
///
/// # Panics
/// Where shapes or types differ.
#[track_caller]
pub fn gated<B: Graph>(
    activation: MlpActivation,
    [gate, up]: [FloatTensor<B>; 2],
    settings: &Settings,
) -> FloatTensor<B> {
    let saved = saved::<B>(settings, &[&gate, &up]);
    let run = || single::gated::<B::Inner>(activation, values::<B, 2>([&gate, &up]), saved);
    B::record([&gate, &up], run)
}

/// How what a backward step takes is kept: as it is where there is none.
fn saved<B: Graph>(settings: &Settings, operands: &[&FloatTensor<B>]) -> Saved {
    match operands.iter().any(|operand| B::is_tracked(operand)) {
        true => settings.saved,
        false => Saved::Whole,
    }
}

/// Attention to queries, keys and values of these shapes, which fit, as the settings have it run; its bias in f32.
fn settled<B: Graph>(
    shapes: [[usize; 4]; 3],
    attention: AttentionOf<B>,
    settings: &Settings,
    device: &B::Device,
) -> AttentionOf<B> {
    check_numbers(&attention);
    check_shapes(shapes, &attention).unwrap_or_else(|error| panic!("{error}"));
    let precision = if settings.is_off { AttentionPrecision::High } else { attention.precision };
    let target = target::<B>(precision, settings.manner, device);
    let bias = attention.bias.map(in_f32::<B>);
    AttentionOf::<B> { bias, precision, target, watch: settings.watch, ..attention }
}

/// What multiplies the numbers of attention.
///
/// # Panics
/// Where the backend has no such precision, or attention in FP8 is to run natively and cannot.
fn target<B: Fp8Engine>(
    precision: AttentionPrecision,
    manner: Manner,
    device: &B::Device,
) -> Target {
    let manner = match (precision, manner.execution) {
        (AttentionPrecision::High, _) => return Target::Emulation(None),
        (AttentionPrecision::Bf16, _) if !B::supports_dtype(device, DType::BF16) => panic!(
            "attention in bf16: backend `{}` has no bf16; choose `high` or `fp8` for it",
            <B as Backend>::name(device)
        ),
        // Nobody asks for bf16 natively.
        (AttentionPrecision::Bf16, Execution::Native) => Manner::in_f32(Execution::Auto),
        (AttentionPrecision::Bf16, execution) => Manner::in_f32(execution),
        _ => Manner { native_blocks: false, ..manner },
    };
    Target::of::<B>(device, Requirements::plain(Form::Attention), manner)
        .unwrap_or_else(|error| panic!("{error}"))
}
