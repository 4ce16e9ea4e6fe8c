//! Attention in f32, whatever the type of its tensors, and what its backward step needs.

use burn_backend::{FloatDType, TensorMetadata, tensor::FloatTensor};

use crate::engine::{AttentionGradients, AttentionOf, Fp8Engine};

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
    let results = B::fp8_attend(qkv.clone().map(in_f32::<B>), attention);
    let output = cast::<B>(results[0].clone(), dtype.into());
    Forward { output, saved: Saved { qkv, attention: attention.clone(), results } }
}

/// The gradients, of the types of what they are for; that of the bias where it is wanted.
pub(super) fn backward<B: Fp8Engine>(
    grad: FloatTensor<B>,
    Saved { qkv, attention, results: [output, logarithms] }: Saved<B>,
    wants_bias: bool,
) -> AttentionGradients<FloatTensor<B>> {
    let dtypes = qkv.each_ref().map(|tensor| FloatDType::from(tensor.dtype()));
    let given = [output, logarithms, in_f32::<B>(grad)];
    let qkv = qkv.map(in_f32::<B>);
    let gradients = B::fp8_attend_backward(qkv, &attention, given, wants_bias);
    let mut dtypes = dtypes.into_iter();
    let operands = gradients.operands.map(|of| cast::<B>(of, dtypes.next().expect("three")));
    AttentionGradients { operands, ..gradients }
}

fn in_f32<B: Fp8Engine>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    cast::<B>(tensor, FloatDType::F32)
}

fn cast<B: Fp8Engine>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    match tensor.dtype() == dtype.into() {
        true => tensor,
        false => B::float_cast(tensor, dtype),
    }
}
