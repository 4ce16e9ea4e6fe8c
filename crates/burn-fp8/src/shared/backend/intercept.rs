//! The operations that are not forwarded as they are. Products go their [`route`](crate::product::route).

use burn_backend::ops::AttentionModuleOptions;
use burn_backend::ops::attention::attention_fallback;
use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn_backend::{
    AutodiffBackend, Backend, DType, Distribution, ExecutionError, FloatDType, Shape, TensorData,
    TensorMetadata,
};
use burn_fp8_core::{
    AttentionPrecision, AttentionShape, Gemm, GemmRole, Pointwise, ProductKind, Softmax,
};

use super::convolution;
use crate::backend::{Fp8Backend, Fp8Matmul};
use crate::config;
use crate::engine::{Target, nothing, raise_refusal, usable};
use crate::fused::{self, Attention};
use crate::host;
use crate::product::route::{as_part_of, settings};
pub(crate) use crate::product::route::{
    linear, linear_weight_backward, linear_x_backward, matmul as float_matmul,
};
use crate::product::{Product, delayed};
use crate::report::{HighPrecision, record_high_precision};
use crate::weights;

pub(crate) fn name<B: Backend>(device: &Device<B>) -> String {
    format!("fp8<{}>", B::name(device))
}

convolution::convolutions!(convolved);

/// Tells the trace of a convolution, or of a gradient of one.
pub(crate) fn convolved(role: GemmRole, forward: Gemm) {
    let gemm = forward.for_role(role);
    record_high_precision(ProductKind::Convolution, role, gemm, HighPrecision::Convolution);
}

/// What Burn's `Autodiff` panics at in words of its own, since it has no derivative of it: the gradients of these operations, which an `Autodiff` around this
/// asks a backend for that has one inside already.
pub(crate) fn differentiates_once<B: Backend>(output_grad: &FloatTensor<B>, operation: &str) {
    let device = host::float_device::<B>(output_grad);
    assert!(
        !B::ad_enabled(&device),
        "`{operation}` was asked of the backend `{}`, which computes gradients itself: there is a second `Autodiff` around it, and Burn's has no second \
         derivative of this operation. Code that adds `Autodiff` itself wants a backend without gradients: give it `Fp8Backend<B>` in the place of \
         `Fp8Backend<Autodiff<B>>`, and it will train on `Autodiff<Fp8Backend<B>>`",
        name::<B>(&device)
    );
}

/// A backward pass ends the step of delayed scaling that it belongs to.
pub(crate) fn backward<B: AutodiffBackend>(tensor: FloatTensor<B>) -> B::Gradients {
    weights::go_on();
    delayed::backward(|| B::backward(tensor))
}

/// A tensor leaves the graph: an optimizer takes a parameter out so, and puts its successor there.
pub(crate) fn inner<B: AutodiffBackend + Fp8Matmul>(
    tensor: FloatTensor<B>,
) -> FloatTensor<B::InnerBackend> {
    let leaf = B::leaf(&tensor);
    weights::taken(leaf.as_ref(), tensor.shape());
    // A parameter that has a name keeps it in validation.
    if let Some(leaf) = leaf.filter(|leaf| weights::parameter(leaf).is_some())
        && let Some(memory) = B::fp8_memory(&tensor)
    {
        weights::lies_in(&leaf, &memory);
    }
    B::inner(tensor)
}

/// A tensor comes into the graph.
pub(crate) fn from_inner<B: AutodiffBackend + Fp8Matmul>(
    tensor: FloatTensor<B::InnerBackend>,
) -> FloatTensor<B> {
    let tensor = B::from_inner(tensor);
    weights::put(B::leaf(&tensor).as_ref(), &tensor.shape());
    tensor
}

/// Reads a tensor. What is read may rest on a product that has been refused meanwhile, or on nothing that was computed.
macro_rules! into_data {
    ($name:ident, $device:ident, $tensor:ident) => {
        pub(crate) async fn $name<B: Fp8Matmul>(
            tensor: $tensor<B>,
        ) -> Result<TensorData, ExecutionError> {
            if let Err(error) = usable::<B>(&host::$device::<B>(&tensor)) {
                return Err(ExecutionError::WithContext { reason: error.to_string() });
            }
            let data = B::$name(tensor).await;
            raise_refusal();
            data
        }
    };
}
into_data!(float_into_data, float_device, FloatTensor);
into_data!(int_into_data, int_device, IntTensor);
into_data!(bool_into_data, bool_device, BoolTensor);

/// Layer normalization is one operation forward and backward, in f32, where the configuration says so.
pub(crate) fn layer_norm<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> FloatTensor<B> {
    match is_fused::<B>(&tensor) {
        true => fused::layer_norm::<B>(tensor, gamma, beta, epsilon, &settings()),
        false => B::layer_norm(tensor, gamma, beta, epsilon),
    }
}

/// So is GELU.
pub(crate) fn gelu<B: Fp8Matmul>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match is_fused::<B>(&tensor) {
        true => fused::pointwise::<B>(Pointwise::Gelu, tensor, &settings()),
        false => B::gelu(tensor),
    }
}

/// Its gradient, which an `Autodiff` around this asks for.
pub(crate) fn gelu_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    match is_fused::<B>(&x) {
        true => fused::pointwise_backward::<B>(Pointwise::Gelu, Some(x), grad),
        false => B::gelu_backward(x, grad),
    }
}

/// And softmax along the last dimension.
pub(crate) fn softmax<B: Fp8Matmul>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    match dim + 1 == tensor.rank() && is_fused::<B>(&tensor) {
        true => fused::softmax::<B>(Softmax::Probabilities, tensor, &settings()),
        false => B::softmax(tensor, dim),
    }
}

/// And its logarithm.
pub(crate) fn log_softmax<B: Fp8Matmul>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    match dim + 1 == tensor.rank() && is_fused::<B>(&tensor) {
        true => fused::softmax::<B>(Softmax::Logarithms, tensor, &settings()),
        false => B::log_softmax(tensor, dim),
    }
}

/// Random bits, of which Burn's dropout is made, come from a generator that uses all threads.
pub(crate) fn float_random<B: Fp8Matmul>(
    shape: Shape,
    distribution: Distribution,
    device: &Device<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    let bits = match (distribution, dtype) {
        (Distribution::Bernoulli(probability), FloatDType::F32)
            if config::current().config.fused_attention::<B>().is_some() =>
        {
            fused::bernoulli::<B>(&shape, probability, device)
        }
        _ => None,
    };
    bits.unwrap_or_else(|| B::float_random(shape, distribution, device, dtype))
}

/// Whether what goes with attention is one operation, too. f64 is not: it would lose bits.
fn is_fused<B: Fp8Matmul>(tensor: &FloatTensor<B>) -> bool {
    tensor.dtype() != DType::F64 && config::current().config.fused_attention::<B>().is_some()
}

/// Attention is one operation where the configuration says so. Else it keeps the fused kernels of `B` unless one of its two products runs in FP8.
pub(crate) fn attention<B: Fp8Matmul>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    mask: Option<BoolTensor<B>>,
    attn_bias: Option<FloatTensor<B>>,
    options: AttentionModuleOptions,
) -> FloatTensor<B> {
    if let [batch, heads, queries, width] = *query.shape()
        && let [.., keys, value_width] = *value.shape()
    {
        let config = config::current().config;
        // Backends may not take what is empty. What does not fit gets the error of `B`.
        let fits = *key.shape() == [batch, heads, keys, width]
            && *value.shape() == [batch, heads, keys, value_width];
        if fits && batch * heads * queries * value_width == 0 {
            if config.attention.is_none() {
                skip_sites::<B>([&query, &key, &value]);
            }
            let shape = Shape::new([batch, heads, queries, value_width]);
            return nothing::<B, 3>([&query, &key, &value], shape);
        }
        let as_one = |precision| Attention {
            scale: options.scale.unwrap_or(1.0 / (width as f64).sqrt()) as f32,
            causal: options.is_causal,
            softcap: options.softcap.map(|cap| cap as f32),
            bias: attn_bias.clone(),
            masks: mask.clone().into_iter().collect(),
            dropout: None,
            precision,
            target: Target::Emulation(None),
            watch: None,
        };
        if let Some(asked) = config.attention {
            return fused::attention::<B>([query, key, value], as_one(asked), &settings());
        }
        let kind = ProductKind::Attention;
        // A batch by nature, also where it holds one pair of matrices: batch size and heads must not decide the precision.
        let gemm = |n, k| Gemm { batch: batch * heads, m: queries, n, k, plain_operand: false };
        let products = [
            (gemm(keys, width), [query.dtype(), key.dtype()]),
            (gemm(value_width, keys), [query.dtype(), value.dtype()]),
        ];
        let decisions = products.map(|(gemm, dtypes)| Product::would_run(kind, gemm, dtypes));
        if decisions.iter().any(Result::is_ok) {
            return as_part_of(kind, || {
                attention_fallback::<Fp8Backend<B>>(query, key, value, mask, attn_bias, options)
            });
        }
        skip_sites::<B>([&query, &key, &value]);
        // What kernels do not take stays Burn's.
        let attention = as_one(AttentionPrecision::High);
        let takes = fits
            && width.max(value_width) <= AttentionShape::WIDEST
            && query.dtype() != DType::F64
            && attention.scale.is_finite()
            && attention.softcap.is_none_or(|cap| cap > 0.0);
        if takes && config.fuses::<B>() {
            return fused::attention::<B>([query, key, value], attention, &settings());
        }
        for ((gemm, _), decision) in products.iter().zip(decisions) {
            if let Err(reason) = decision {
                record_high_precision(kind, GemmRole::Output, *gemm, reason);
            }
        }
    }
    B::attention(query, key, value, mask, attn_bias, options)
}

/// Counts the two products of attention, as far as they are tracked, so that those after them keep their sites.
fn skip_sites<B: Fp8Matmul>([query, key, value]: [&FloatTensor<B>; 3]) {
    let scores = B::is_tracked(query) || B::is_tracked(key);
    let context = scores || B::is_tracked(value);
    let gemm = Gemm { plain_operand: false, ..Gemm::matrix(0, 0, 0) };
    [scores, context].into_iter().filter(|tracked| *tracked).for_each(|_| {
        Product::skip_site(gemm, None);
    });
}
