//! The operations that are not forwarded as they are: those of burn-fp8, within what a client has told about its stream.

use burn_backend::ops::AttentionModuleOptions;
use burn_backend::tensor::{BoolTensor, Device, FloatTensor};
use burn_backend::{Distribution, FloatDType, Shape, TensorMetadata, TensorPrimitive};
use burn_fp8_core::{Gemm, GemmRole};

use super::common::{intercept as common, quantized};
use super::convolution;
pub(super) use super::quantized::dequantize;
use super::{Fp8Backend, Fp8Matmul, gradient, session};
pub(super) use common::{
    bool_into_data, float_into_data, int_into_data, linear, linear_weight_backward,
    linear_x_backward, name,
};
pub(super) use quantized::{
    q_cat, q_from_data, q_into_data, q_is_require_grad, quantize, quantize_dynamic, tr_execute,
};

convolution::convolutions!(convolved);

fn convolved(role: GemmRole, forward: Gemm) {
    session::run(|| common::convolved(role, forward));
}

pub(super) fn q_matmul<B: Fp8Matmul>(
    lhs: TensorPrimitive<Fp8Backend<B>>,
    rhs: TensorPrimitive<Fp8Backend<B>>,
) -> TensorPrimitive<Fp8Backend<B>> {
    session::run(|| quantized::q_matmul(lhs, rhs))
}

pub(super) fn float_matmul<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
) -> FloatTensor<B> {
    let identities = [&lhs, &rhs].map(|tensor| B::identity(tensor));
    let (rows, columns) = (lhs.shape(), rhs.shape());
    let sides = [rows[rows.num_dims() - 2], columns[columns.num_dims() - 1]];
    session::run(|| match session::gradient(identities.clone(), sides) {
        Some(gradient) => gradient::matmul::<B>(gradient, [lhs, rhs]),
        None => {
            session::remember(identities.each_ref(), [&rows, &columns]);
            common::float_matmul::<B>(lhs, rhs)
        }
    })
}

pub(super) fn float_swap_dims<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    dim1: usize,
    dim2: usize,
) -> FloatTensor<B> {
    let transposed = B::float_swap_dims(tensor, dim1, dim2);
    session::transposed(|| B::identity(&transposed));
    transposed
}

pub(super) fn attention<B: Fp8Matmul>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    mask: Option<BoolTensor<B>>,
    attn_bias: Option<FloatTensor<B>>,
    options: AttentionModuleOptions,
) -> FloatTensor<B> {
    session::run(|| common::attention::<B>(query, key, value, mask, attn_bias, options))
}

pub(super) fn layer_norm<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> FloatTensor<B> {
    session::run(|| common::layer_norm::<B>(tensor, gamma, beta, epsilon))
}

pub(super) fn float_random<B: Fp8Matmul>(
    shape: Shape,
    distribution: Distribution,
    device: &Device<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    session::run(|| common::float_random::<B>(shape, distribution, device, dtype))
}

pub(super) fn softmax<B: Fp8Matmul>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    session::run(|| common::softmax::<B>(tensor, dim))
}

pub(super) fn log_softmax<B: Fp8Matmul>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    session::run(|| common::log_softmax::<B>(tensor, dim))
}

pub(super) fn gelu<B: Fp8Matmul>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    session::run(|| common::gelu::<B>(tensor))
}

pub(super) fn gelu_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    session::run(|| common::gelu_backward::<B>(x, grad))
}
