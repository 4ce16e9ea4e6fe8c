//! Attention in tensor operations: whole matrices of scores.

use burn_backend::{
    Backend, FloatDType, Shape, TensorData, TensorMetadata, get_device_settings,
    tensor::FloatTensor,
};
use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_core::{AttentionPrecision, AttentionShape, Fp8Format, Overflow, Recipe};
use burn_fp8_cpu::dropout::keep;

use crate::engine::tensor::reshape;
use crate::engine::{
    Fp8Engine, Request, RequestOf, Scalar, ScaleRule, Wanted, in_f32, multiply_high,
};
use crate::fused::options::{Attention, AttentionGradients, AttentionOf, check};
use crate::host;

/// Rows that share a scale.
const ROWS: [usize; 2] = [AttentionPrecision::BLOCK, usize::MAX];

/// Gradients of scores that share a scale.
const TILE: [usize; 2] = [AttentionPrecision::BLOCK; 2];

/// The output, and the logarithms of sums.
pub(crate) fn attend<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
) -> [FloatTensor<B>; 2] {
    let (shape, [q, k, v]) = operands::<B>(qkv, attention);
    let (scores, _) = scores::<B>(&shape, [q.clone(), k], attention);
    // Where nothing is visible, all exponentials are to be 0.
    let largest = B::float_clamp_min(B::float_max_dim(scores.clone(), 3), f32::MIN.into());
    let exponentials = B::float_exp(B::float_sub(scores, largest.clone()));
    let sums = B::float_sum_dim(exponentials.clone(), 3);
    let weights = match kept::<B>(&shape, attention, &q) {
        Some(kept) => B::float_mul(exponentials, kept),
        None => exponentials,
    };
    let weights = probabilities::<B>(weights, attention.precision);
    let output = B::float_mul_scalar(multiply_high::<B>(weights, v), factor(attention).into());
    // A sum is at least 1, or 0.
    let output = B::float_div(output, B::float_clamp_min(sums.clone(), 0.5f32.into()));
    let settings = get_device_settings::<B>(&host::float_device::<B>(&sums));
    let blind = B::float_equal_elem(sums.clone(), 0f32.into(), settings.bool_dtype);
    let logarithms = B::float_add(largest, B::float_log(sums));
    let logarithms = B::float_mask_fill(logarithms, blind, f32::INFINITY.into());
    [output, logarithms]
}

/// The gradients; `given` are output, logarithms and the gradient of the output.
pub(crate) fn attend_backward<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    [output, logarithms, grad]: [FloatTensor<B>; 3],
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>> {
    let (shape, [q, k, v]) = operands::<B>(qkv, attention);
    let precision = attention.precision;
    let (scores, slopes) = scores::<B>(&shape, [q.clone(), k.clone()], attention);
    let weights = B::float_exp(B::float_sub(scores, logarithms));
    let deltas = B::float_sum_dim(B::float_mul(output, grad.clone()), 3);
    let grad = rounded::<B>(grad, precision, (E5M2, ROWS));
    let factor = factor(attention);
    let kept = kept::<B>(&shape, attention, &q);
    let of_kept = |x: FloatTensor<B>| match &kept {
        Some(kept) => B::float_mul(x, kept.clone()),
        None => x,
    };

    let of_weights = multiply_high::<B>(grad.clone(), transpose::<B>(v));
    let of_weights = of_kept(B::float_mul_scalar(of_weights, factor.into()));
    let of_biased = B::float_mul(weights.clone(), B::float_sub(of_weights, deltas));
    let of_scores = match slopes {
        Some(slopes) => B::float_mul(of_biased.clone(), slopes),
        None => of_biased.clone(),
    };
    let of_scores = rounded::<B>(of_scores, precision, (E5M2, TILE));
    let weights = probabilities::<B>(of_kept(weights), precision);

    let scaled = |x: FloatTensor<B>, factor: f32| B::float_mul_scalar(x, factor.into());
    let of_v = scaled(multiply_high::<B>(transpose::<B>(weights), grad), factor);
    let of_q = scaled(multiply_high::<B>(of_scores.clone(), k), attention.scale);
    let of_k = scaled(multiply_high::<B>(transpose::<B>(of_scores), q), attention.scale);
    let [of_k, of_v] = [of_k, of_v].map(|of| of_shared::<B>(&shape, of));
    let bias = attention.bias.as_ref().filter(|_| wants_bias).map(|bias| {
        let sizes = bias.shape();
        let sums = (0..4).filter(|dim| sizes[*dim] == 1);
        sums.fold(of_biased, |of_bias, dim| B::float_sum_dim(of_bias, dim))
    });
    AttentionGradients { operands: [of_q, of_k, of_v], bias }
}

/// Operands as they are multiplied, each head of queries with its own head of keys and values.
fn operands<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
) -> (AttentionShape, [FloatTensor<B>; 3]) {
    let shape = check(qkv.each_ref(), attention).unwrap_or_else(|error| panic!("{error}"));
    let qkv = qkv.map(in_f32::<B>);
    let [q, k, v] = qkv.map(|x| rounded::<B>(x, attention.precision, (E4M3, ROWS)));
    let spread = |x: FloatTensor<B>| {
        let [batch, heads, length, width] = x.shape().dims();
        let group = shape.group();
        if group == 1 {
            return x;
        }
        let x = reshape::<B>(x, Shape::new([batch, heads, 1, length, width]));
        let x = B::float_expand(x, Shape::new([batch, heads, group, length, width]));
        B::float_reshape(x, Shape::new([batch, shape.heads, length, width]))
    };
    (shape, [q, spread(k), spread(v)])
}

/// Sums the gradients of the heads that share one of keys and values.
fn of_shared<B: Backend>(shape: &AttentionShape, x: FloatTensor<B>) -> FloatTensor<B> {
    let [batch, _, length, width] = x.shape().dims();
    if shape.group() == 1 {
        return x;
    }
    let groups = Shape::new([batch, shape.kv_heads, shape.group(), length, width]);
    let sums = B::float_sum_dim(B::float_reshape(x, groups), 2);
    B::float_reshape(sums, Shape::new([batch, shape.kv_heads, length, width]))
}

/// Scores, -∞ where a query does not see a key; and by how much a capped one changes with what is capped.
fn scores<B: Fp8Engine>(
    shape: &AttentionShape,
    [q, k]: [FloatTensor<B>; 2],
    attention: &AttentionOf<B>,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    let mut scores = multiply_high::<B>(q, transpose::<B>(k));
    scores = B::float_mul_scalar(scores, attention.scale.into());
    let mut slopes = None;
    if let Some(cap) = attention.softcap {
        let ratios = B::float_tanh(B::float_div_scalar(scores, cap.into()));
        let squares = B::float_mul(ratios.clone(), ratios.clone());
        slopes = Some(B::float_add_scalar(B::float_neg(squares), 1f32.into()));
        scores = B::float_mul_scalar(ratios, cap.into());
    }
    if let Some(bias) = &attention.bias {
        scores = B::float_add(scores, bias.clone());
    }
    let hidden = f32::NEG_INFINITY;
    for mask in &attention.masks {
        let mask = B::bool_expand(mask.clone(), scores.shape());
        scores = B::float_mask_fill(scores, mask, hidden.into());
    }
    if attention.causal {
        let [.., queries, keys] = shape.scores();
        let ahead = (0..queries * keys).map(|index| {
            let (query, key) = (index / keys, index % keys);
            if key + queries > query + keys { 1f32 } else { 0.0 }
        });
        let ahead = TensorData::new(ahead.collect(), [1, 1, queries, keys]);
        let device = host::float_device::<B>(&scores);
        let ahead = B::float_from_data(ahead, &device);
        // Not added: infinity less infinity is no number.
        let bools = get_device_settings::<B>(&device).bool_dtype;
        let ahead = B::float_greater_elem(ahead, 0f32.into(), bools);
        let ahead = B::bool_expand(ahead, scores.shape());
        scores = B::float_mask_fill(scores, ahead, hidden.into());
    }
    (scores, slopes)
}

/// 1 where a probability is kept, 0 where it is dropped: `[batch, heads, queries, keys]`, made on the host.
fn kept<B: Fp8Engine>(
    shape: &AttentionShape,
    attention: &AttentionOf<B>,
    like: &FloatTensor<B>,
) -> Option<FloatTensor<B>> {
    const GROUP: usize = 8;
    let dropout = attention.dropout?;
    let scores @ [.., keys] = shape.scores();
    let mut kept = Vec::with_capacity(scores.iter().product());
    let mut columns = vec![[0f32; GROUP]; keys];
    let rows: usize = scores[..3].iter().product();
    for row in (0..rows).step_by(GROUP) {
        keep(dropout, row as u64, 0, &mut columns);
        for row in 0..GROUP.min(rows - row) {
            kept.extend(columns.iter().map(|column| column[row]));
        }
    }
    let kept = TensorData::new(kept, scores);
    Some(B::float_from_data(kept, &host::float_device::<B>(like)))
}

fn factor<F, M>(attention: &Attention<F, M>) -> f32 {
    attention.dropout.map_or(1.0, |dropout| dropout.factor())
}

fn transpose<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 2, 3)
}

/// The numbers that are multiplied in the place of these.
fn rounded<B: Fp8Engine>(
    x: FloatTensor<B>,
    precision: AttentionPrecision,
    (format, block): (Fp8Format, [usize; 2]),
) -> FloatTensor<B> {
    let rule = ScaleRule::Current(Recipe::current());
    in_precision::<B>(x, precision, Request { format, block, rule, wanted: Wanted::Values })
}

/// The same of probabilities, which have one scale: the largest there can be is the largest number of the format.
fn probabilities<B: Fp8Engine>(x: FloatTensor<B>, precision: AttentionPrecision) -> FloatTensor<B> {
    let scale = Scalar::Host(1.0 / E4M3.max());
    let rule = ScaleRule::Given(scale, Overflow::SaturateFinite);
    in_precision::<B>(x, precision, Request::whole(E4M3, rule, Wanted::Values))
}

fn in_precision<B: Fp8Engine>(
    x: FloatTensor<B>,
    precision: AttentionPrecision,
    request: RequestOf<B>,
) -> FloatTensor<B> {
    match precision {
        AttentionPrecision::High => x,
        AttentionPrecision::Bf16 => {
            B::float_cast(B::float_cast(x, FloatDType::BF16), FloatDType::F32)
        }
        AttentionPrecision::Fp8 if x.shape().num_elements() == 0 => x,
        AttentionPrecision::Fp8 => B::fp8_dequantize(B::fp8_quantize(x, request)),
    }
}
