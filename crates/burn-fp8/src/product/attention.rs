//! Attention as one operation: in f32, whatever the type of its tensors; what is reported of it, and what its backward step needs.

use burn_backend::{Backend, FloatDType, Slice, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AttentionPrecision, AttentionShape, Gemm, GemmRole, ProductKind};

use crate::engine::tensor::cast;
use crate::engine::{
    AttentionGradients, AttentionOf, Capability, Fp8Engine, MatrixOf, Target, check_attention,
    in_f32,
};
use crate::host;
use crate::report::{HighPrecision, Implementation, Pending, PendingRan, record};

/// The result, and what the backward pass takes.
pub(super) struct Forward<B: Fp8Engine> {
    /// Of the type of the queries.
    pub(super) output: FloatTensor<B>,
    pub(super) saved: Saved<B>,
}

#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    /// As they were given.
    qkv: [FloatTensor<B>; 3],
    attention: AttentionOf<B>,
    /// The output in f32, and the logarithms of sums.
    results: [FloatTensor<B>; 2],
}

pub(super) fn forward<B: Fp8Engine>(
    qkv: [FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
) -> Forward<B> {
    let dtype = qkv[0].dtype();
    report::<B>(&qkv, attention, &[GemmRole::Output], &attention.target);
    let [q, k, v] = qkv.clone();
    let results = B::fp8_attend([in_f32::<B>(q), k, v], attention);
    let output = cast::<B>(results[0].clone(), dtype.into());
    Forward { output, saved: Saved { qkv, attention: attention.clone(), results } }
}

/// The output of the type of the queries, to keys and values in FP8.
pub(super) fn to_codes<B: Fp8Engine>(
    q: FloatTensor<B>,
    kv: [MatrixOf<B>; 2],
    attention: &AttentionOf<B>,
) -> FloatTensor<B> {
    let dtype = q.dtype();
    let output = B::fp8_attend_to_codes(in_f32::<B>(q), kv, attention);
    cast::<B>(output, dtype.into())
}

/// The gradients of queries, keys and values, of their types; that of the bias where it is wanted.
pub(super) fn backward<B: Fp8Engine>(
    grad: FloatTensor<B>,
    saved: Saved<B>,
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>> {
    backward_by::<B, 3>(grad, saved, wants_bias, B::fp8_attend_backward)
}

/// The gradient of a tensor that [`apart`] has taken apart.
pub(super) fn self_backward<B: Fp8Engine>(
    grad: FloatTensor<B>,
    saved: Saved<B>,
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>, 1> {
    backward_by::<B, 1>(grad, saved, wants_bias, B::fp8_self_attend_backward)
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
    Saved { qkv, attention, results: [output, logarithms] }: Saved<B>,
    wants_bias: bool,
    attend_backward: AttendBackward<B, OPERANDS>,
) -> AttentionGradients<FloatTensor<B>, OPERANDS> {
    if attention.precision == AttentionPrecision::Fp8 {
        // The gradient of a bias takes whole scores, which no unit is given.
        let target = match &attention.target {
            Target::MatrixUnit if wants_bias => &Target::Emulation(None),
            target => target,
        };
        report::<B>(&qkv, &attention, &[GemmRole::GradInput, GemmRole::GradWeight], target);
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

/// Reports both products, the scores and their product with the values, in these roles.
fn report<B: Fp8Engine>(
    qkv: &[FloatTensor<B>; 3],
    attention: &AttentionOf<B>,
    roles: &[GemmRole],
    target: &Target,
) {
    let shape = check_attention(qkv.each_ref(), attention);
    let AttentionShape { batch, heads, queries, keys, width, value_width, .. } =
        shape.unwrap_or_else(|error| panic!("{error}"));
    let gemm = |n, k| Gemm { batch: batch * heads, m: queries, n, k, plain_operand: false };
    for gemm in [gemm(keys, width), gemm(value_width, keys)] {
        for role in roles.iter().copied() {
            record(|| Pending {
                kind: ProductKind::Attention,
                role,
                gemm: gemm.for_role(role),
                operands: None,
                site: None,
                ran: PendingRan::Known(match attention.precision {
                    AttentionPrecision::Fp8 => {
                        match (target, B::fp8_capability(&host::float_device::<B>(&qkv[0]))) {
                            (Target::MatrixUnit, Capability::MatrixUnit(unit)) => {
                                Implementation::MatrixUnit(unit.name)
                            }
                            (Target::Emulation(Some(fallback)), _) => {
                                Implementation::Fallback(fallback.clone())
                            }
                            _ => Implementation::FakeQuantized,
                        }
                    }
                    other => Implementation::HighPrecision(HighPrecision::Attention(other)),
                }),
            });
        }
    }
}
