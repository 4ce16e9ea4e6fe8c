//! What [`Foreign<B>`](super::Foreign) does itself: it has a name.

use burn::tensor::backend::{AutodiffBackend, Backend, ExecutionError};
use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, Device, FloatTensor, IntTensor, QuantizedTensor,
    TransactionPrimitive, TransactionPrimitiveData,
};
use burn::tensor::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn::tensor::{Distribution, FloatDType, Shape, TensorData, TensorMetadata, TensorPrimitive};
use burn_fp8::{Gemm, GemmRole};

use super::convert::Rewrap;
use super::{Foreign, convolution};

convolution::convolutions!(convolved);

fn convolved(_: GemmRole, _: Gemm) {}

pub(crate) fn q_matmul<B: Backend>(
    lhs: TensorPrimitive<Foreign<B>>,
    rhs: TensorPrimitive<Foreign<B>>,
) -> TensorPrimitive<Foreign<B>> {
    B::q_matmul(lhs.rewrap(), rhs.rewrap()).rewrap()
}

pub(crate) fn q_from_data<B: Backend>(data: TensorData, device: &Device<B>) -> QuantizedTensor<B> {
    B::q_from_data(data, device)
}

pub(crate) fn quantize<B: Backend>(
    tensor: FloatTensor<B>,
    scheme: &QuantScheme,
    qparams: QuantizationParametersPrimitive<Foreign<B>>,
) -> QuantizedTensor<B> {
    B::quantize(tensor, scheme, qparams.rewrap())
}

pub(crate) fn quantize_dynamic<B: Backend>(
    tensor: FloatTensor<B>,
    scheme: &QuantScheme,
) -> QuantizedTensor<B> {
    B::quantize_dynamic(tensor, scheme)
}

pub(crate) fn q_device<B: Backend>(tensor: &QuantizedTensor<B>) -> Device<B> {
    B::q_device(tensor)
}

pub(crate) async fn q_into_data<B: Backend>(
    tensor: QuantizedTensor<B>,
) -> Result<TensorData, ExecutionError> {
    B::q_into_data(tensor).await
}

pub(crate) fn q_is_require_grad<B: Backend>(tensor: &QuantizedTensor<B>) -> bool {
    B::q_is_require_grad(tensor)
}

pub(crate) fn q_cat<B: Backend>(
    tensors: Vec<QuantizedTensor<B>>,
    dim: usize,
) -> QuantizedTensor<B> {
    B::q_cat(tensors, dim)
}

pub(crate) fn q_inner<B: AutodiffBackend>(
    tensor: QuantizedTensor<B>,
) -> QuantizedTensor<B::InnerBackend> {
    B::q_inner(tensor)
}

pub(crate) fn q_from_inner<B: AutodiffBackend>(
    tensor: QuantizedTensor<B::InnerBackend>,
) -> QuantizedTensor<B> {
    B::q_from_inner(tensor)
}

pub(crate) async fn tr_execute<B: Backend>(
    transaction: TransactionPrimitive<Foreign<B>>,
) -> Result<TransactionPrimitiveData, ExecutionError> {
    B::tr_execute(transaction.rewrap()).await
}

pub(crate) fn differentiates_once<B: Backend>(_: &FloatTensor<B>, _: &str) {}

pub(crate) fn name<B: Backend>(device: &Device<B>) -> String {
    format!("foreign<{}>", B::name(device))
}

pub(crate) fn backward<B: AutodiffBackend>(tensor: FloatTensor<B>) -> B::Gradients {
    B::backward(tensor)
}

pub(crate) fn inner<B: AutodiffBackend>(tensor: FloatTensor<B>) -> FloatTensor<B::InnerBackend> {
    B::inner(tensor)
}

pub(crate) fn from_inner<B: AutodiffBackend>(
    tensor: FloatTensor<B::InnerBackend>,
) -> FloatTensor<B> {
    B::from_inner(tensor)
}

pub(crate) fn dequantize<B: Backend>(
    tensor: QuantizedTensor<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    B::dequantize(tensor, dtype)
}

pub(crate) async fn float_into_data<B: Backend>(
    tensor: FloatTensor<B>,
) -> Result<TensorData, ExecutionError> {
    B::float_into_data(tensor).await
}

pub(crate) async fn int_into_data<B: Backend>(
    tensor: IntTensor<B>,
) -> Result<TensorData, ExecutionError> {
    B::int_into_data(tensor).await
}

pub(crate) async fn bool_into_data<B: Backend>(
    tensor: BoolTensor<B>,
) -> Result<TensorData, ExecutionError> {
    B::bool_into_data(tensor).await
}

pub(crate) fn float_matmul<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(lhs, rhs)
}

pub(crate) fn linear<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    B::linear(x, weight, bias)
}

pub(crate) fn linear_x_backward<B: Backend>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    B::linear_x_backward(weight, output_grad)
}

pub(crate) fn linear_weight_backward<B: Backend>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    B::linear_weight_backward(x, output_grad)
}

pub(crate) fn attention<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    mask: Option<BoolTensor<B>>,
    attn_bias: Option<FloatTensor<B>>,
    options: AttentionModuleOptions,
) -> FloatTensor<B> {
    B::attention(query, key, value, mask, attn_bias, options)
}

pub(crate) fn layer_norm<B: Backend>(
    tensor: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> FloatTensor<B> {
    B::layer_norm(tensor, gamma, beta, epsilon)
}

pub(crate) fn float_random<B: Backend>(
    shape: Shape,
    distribution: Distribution,
    device: &Device<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    B::float_random(shape, distribution, device, dtype)
}

pub(crate) fn softmax<B: Backend>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    B::softmax(tensor, dim)
}

pub(crate) fn log_softmax<B: Backend>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    B::log_softmax(tensor, dim)
}

pub(crate) fn gelu<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    B::gelu(tensor)
}

pub(crate) fn gelu_backward<B: Backend>(x: FloatTensor<B>, grad: FloatTensor<B>) -> FloatTensor<B> {
    B::gelu_backward(x, grad)
}
