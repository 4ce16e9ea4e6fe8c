//! Attention as one operation: in f32, whatever the type of its tensors; who is told of it, and what its backward step needs.

use burn_backend::{Backend, FloatDType, Slice, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AttentionPrecision, AttentionShape, Gemm, GemmRole};

#[cfg(feature = "flex")]
use super::flex;
use super::kept::Kept;
use super::options::{AttentionGradients, AttentionOf, check};
use super::portable::attention as portable;
use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, MatrixOf, Step, Target, Watched, in_f32};

/// The result, and what the backward pass takes.
pub(super) struct Forward<B: Fp8Engine> {
    /// Of the type of the queries.
    pub(super) output: FloatTensor<B>,
    pub(super) saved: Saved<B>,
}

#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    qkv: Operands<B>,
    attention: AttentionOf<B>,
    /// The output in f32 and the logarithms of sums. Those of operands in FP8 are computed again: beside them the output of others would be off.
    results: Option<[FloatTensor<B>; 2]>,
}

/// Queries, keys and values.
#[derive(Clone, Debug)]
enum Operands<B: Fp8Engine> {
    /// Each `[batch, length, heads, width]`, of which heads are mostly a view.
    Apart(Box<[Kept<B>; 3]>),
    /// In one tensor, with so many heads of keys.
    One(Kept<B>, usize),
}

impl<B: Fp8Engine> Operands<B> {
    fn are_whole(&self) -> bool {
        let kept = match self {
            Self::Apart(parts) => &parts[..],
            Self::One(qkv, _) => core::slice::from_ref(qkv),
        };
        kept.iter().all(|kept| matches!(kept, Kept::Whole(_)))
    }

    /// Each `[batch, heads, length, width]`.
    fn restore(self) -> [FloatTensor<B>; 3] {
        match self {
            Self::Apart(parts) => parts.map(|part| B::float_swap_dims(part.restore(), 1, 2)),
            Self::One(qkv, kv_heads) => apart::<B>(qkv.restore(), kv_heads),
        }
    }
}

pub(super) fn forward<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    as_asked: burn_fp8_core::Saved,
) -> Forward<B> {
    let keep = |part| Kept::new(B::float_swap_dims(part, 1, 2), as_asked);
    let operands = Operands::Apart(Box::new(qkv.clone().map(keep)));
    run::<B>(qkv, operands, attention)
}

/// The same of one tensor `[batch, length, heads + 2 · kv_heads, width]`.
pub(super) fn forward_of_one<B: Fp8Engine>(
    qkv: FloatTensor<B>,
    kv_heads: usize,
    attention: &AttentionOf<B>,
    as_asked: burn_fp8_core::Saved,
) -> Forward<B> {
    let operands = Operands::One(Kept::new(qkv.clone(), as_asked), kv_heads);
    run::<B>(apart::<B>(qkv, kv_heads), operands, attention)
}

fn run<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    operands: Operands<B>,
    attention: &AttentionOf<B>,
) -> Forward<B> {
    let dtype = qkv[0].dtype();
    tell::<B>(&qkv, attention, &[GemmRole::Output], &attention.target);
    let results = attend_to::<B>(qkv, attention);
    let output = cast::<B>(results[0].clone(), dtype.into());
    let results = operands.are_whole().then_some(results);
    Forward { output, saved: Saved { qkv: operands, attention: attention.clone(), results } }
}

fn attend_to<B: Fp8Engine>(
    [q, k, v]: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
) -> [FloatTensor<B>; 2] {
    attend::<B>([in_f32::<B>(q), k, v], attention)
}

/// The output of the type of the queries, to keys and values in FP8: products are f32.
///
/// # Panics
/// Where shapes do not fit each other.
pub fn attention_to_codes<B: Fp8Engine>(
    q: FloatTensor<B>,
    kv: [MatrixOf<B>; 2],
    attention: AttentionOf<B>,
) -> FloatTensor<B> {
    super::options::check_numbers(&attention);
    let dtype = q.dtype();
    let bias = attention.bias.map(in_f32::<B>);
    let attention = AttentionOf::<B> { bias, ..attention };
    cast::<B>(attend_to_codes::<B>(in_f32::<B>(q), kv, attention), dtype.into())
}

/// The output in f32, and the logarithm of the sum of each row's exponentials `[batch, heads, queries, 1]`, ∞ where a query sees no key. `q` is f32.
fn attend<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
) -> [FloatTensor<B>; 2] {
    #[cfg(feature = "flex")]
    let qkv =
        match flex::run((qkv, attention.clone()), |(qkv, attention)| flex::attend(qkv, &attention))
        {
            Ok(results) => return results,
            Err((qkv, _)) => qkv,
        };
    portable::attend::<B>(qkv, attention)
}

/// The output alone, to keys and values in FP8.
fn attend_to_codes<B: Fp8Engine>(
    q: FloatTensor<B>,
    kv: [MatrixOf<B>; 2],
    attention: AttentionOf<B>,
) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let (q, kv, attention) = match flex::run((q, kv, attention), |(q, kv, attention)| {
        flex::attend_to_codes(q, kv, &attention)
    }) {
        Ok(output) => return output,
        Err(given) => given,
    };
    let [k, v] = kv.map(B::fp8_dequantize);
    let [output, _] = attend::<B>([q, k, v], &attention);
    output
}

/// The gradients of queries, keys and values, or of one tensor of all three, of their types; and that of a bias where there is one more operand.
impl<B: Fp8Engine, const N: usize> Step<B, N> for Saved<B> {
    fn backward(self, grad: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N] {
        let gradients: Vec<_> = match N {
            1 | 2 => {
                let wants_bias = wanted.get(1) == Some(&true);
                let by = self_attend_backward::<B>;
                let AttentionGradients { operands, bias } =
                    backward_by::<B, 1>(grad, self, wants_bias, by);
                operands.into_iter().map(Some).chain([bias]).collect()
            }
            _ => {
                let wants_bias = wanted.get(3) == Some(&true);
                let by = attend_backward::<B>;
                let AttentionGradients { operands, bias } =
                    backward_by::<B, 3>(grad, self, wants_bias, by);
                operands.into_iter().map(Some).chain([bias]).collect()
            }
        };
        let mut gradients = gradients.into_iter();
        [(); N].map(|()| gradients.next().flatten())
    }
}

/// Queries, keys and values, how they were attended to, output with logarithms and the gradient of the output, and whether that of the bias is wanted.
type AttendBackward<B, const OPERANDS: usize> = fn(
    [FloatTensor<B>; 3],
    &AttentionOf<B>,
    [FloatTensor<B>; 3],
    bool,
) -> AttentionGradients<FloatTensor<B>, OPERANDS>;

fn backward_by<B: Fp8Engine, const OPERANDS: usize>(
    grad: FloatTensor<B>,
    Saved { qkv, attention, results }: Saved<B>,
    wants_bias: bool,
    attend_backward: AttendBackward<B, OPERANDS>,
) -> AttentionGradients<FloatTensor<B>, OPERANDS> {
    let qkv = qkv.restore();
    let [output, logarithms] = results.unwrap_or_else(|| attend_to::<B>(qkv.clone(), &attention));
    if attention.precision == AttentionPrecision::Fp8 {
        // The gradient of a bias takes whole scores, which no unit is given.
        let target = match &attention.target {
            Target::MatrixUnit if wants_bias => &Target::Emulation(None),
            target => target,
        };
        tell::<B>(&qkv, &attention, &[GemmRole::GradInput, GemmRole::GradWeight], target);
    }
    let dtypes = qkv.each_ref().map(|tensor| FloatDType::from(tensor.dtype()));
    let given = [output, logarithms, in_f32::<B>(grad)];
    let qkv = qkv.map(in_f32::<B>);
    let gradients = attend_backward(qkv, &attention, given, wants_bias);
    let mut dtypes = dtypes.into_iter();
    let operands = gradients.operands.map(|of| cast::<B>(of, dtypes.next().expect("three")));
    AttentionGradients { operands, ..gradients }
}

/// Queries, keys and values `[batch, heads, length, width]` of a tensor `[batch, length, heads + 2 · kv_heads, width]`: views, where the backend has them.
pub(super) fn apart<B: Backend>(qkv: FloatTensor<B>, kv_heads: usize) -> [FloatTensor<B>; 3] {
    let heads = qkv.shape()[2] - 2 * kv_heads;
    [0..heads, heads..heads + kv_heads, heads + kv_heads..heads + 2 * kv_heads].map(|heads| {
        let all = Slice::full();
        let part = B::float_slice(qkv.clone(), &[all, all, heads.into(), all]);
        B::float_swap_dims(part, 1, 2)
    })
}

/// The gradients of f32 tensors; `given` are output, logarithms and the gradient of the output.
fn attend_backward<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    given: [FloatTensor<B>; 3],
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>> {
    // That of a bias takes scores of the whole, which tiles do not keep.
    #[cfg(feature = "flex")]
    let (qkv, given) = match wants_bias {
        true => (qkv, given),
        false => match flex::run((qkv, attention.clone(), given), |(qkv, attention, given)| {
            flex::attend_backward(qkv, &attention, given)
        }) {
            Ok(gradients) => return gradients,
            Err((qkv, _, given)) => (qkv, given),
        },
    };
    portable::attend_backward::<B>(qkv, attention, given, wants_bias)
}

/// The same of queries, keys and values of one length and width: one gradient for all three, `[batch, length, heads + 2 · kv_heads, width]`.
fn self_attend_backward<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    given: [FloatTensor<B>; 3],
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>, 1> {
    #[cfg(feature = "flex")]
    let (qkv, given) = match wants_bias {
        true => (qkv, given),
        false => match flex::run((qkv, attention.clone(), given), |(qkv, attention, given)| {
            flex::self_attend_backward(qkv, &attention, given)
        }) {
            Ok(gradients) => return gradients,
            Err((qkv, _, given)) => (qkv, given),
        },
    };
    let AttentionGradients { operands, bias } =
        attend_backward::<B>(qkv, attention, given, wants_bias);
    let operands = operands.map(|heads| B::float_swap_dims(heads, 1, 2));
    AttentionGradients { operands: [B::float_cat(operands.into(), 2)], bias }
}

/// Tells who wants to know of both products, the scores and their product with the values, in these roles.
fn tell<B: Fp8Engine>(
    qkv: &[FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    roles: &[GemmRole],
    target: &Target,
) {
    let Some(watch) = attention.watch else { return };
    let shape = check(qkv.each_ref(), attention).unwrap_or_else(|error| panic!("{error}"));
    // Matrix units are those of the host.
    #[cfg(feature = "flex")]
    let unit = match (target, burn_fp8_cpu::Unit::current()) {
        (Target::MatrixUnit, unit) if unit != burn_fp8_cpu::Unit::Portable => Some(unit.title()),
        _ => None,
    };
    #[cfg(not(feature = "flex"))]
    let unit = None;
    let AttentionShape { batch, heads, queries, keys, width, value_width, .. } = shape;
    let gemm = |n, k| Gemm { batch: batch * heads, m: queries, n, k, plain_operand: false };
    for forward in [gemm(keys, width), gemm(value_width, keys)] {
        for role in roles.iter().copied() {
            let (gemm, precision) = (forward.for_role(role), attention.precision);
            watch(&Watched { gemm, role, precision, target, unit });
        }
    }
}
