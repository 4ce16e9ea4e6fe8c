//! The operations that are not forwarded as they are: each asks the configuration, then runs in FP8 or on `B`.

use std::cell::RefCell;

use burn::tensor::backend::{AutodiffBackend, Backend, ExecutionError};
use burn::tensor::ops::attention::attention_fallback;
use burn::tensor::ops::{AttentionModuleOptions, BoolTensor, Device, FloatTensor, IntTensor};
use burn::tensor::{Shape, TensorData, TensorMetadata};
use burn_fp8_core::{Gemm, GemmRole, ProductKind};

use super::{Fp8Backend, Fp8Matmul};
use crate::config::scope::{innermost, within};
use crate::engine::{raise_refusal, usable};
use crate::product::{Product, delayed, linear_gemm};
use crate::report::record_high_precision;

pub(super) fn name<B: Backend>(device: &Device<B>) -> String {
    format!("fp8<{}>", B::name(device))
}

/// A backward pass ends the step of delayed scaling that it belongs to.
pub(super) fn backward<B: AutodiffBackend>(tensor: FloatTensor<B>) -> B::Gradients {
    delayed::backward(|| B::backward(tensor))
}

/// Reads a tensor. What is read may rest on a product that has been refused meanwhile, or on nothing that was computed.
macro_rules! into_data {
    ($name:ident, $device:ident, $tensor:ident) => {
        pub(super) async fn $name<B: Fp8Matmul>(
            tensor: $tensor<B>,
        ) -> Result<TensorData, ExecutionError> {
            if let Err(error) = usable::<B>(&B::$device(&tensor)) {
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

pub(super) fn float_matmul<B: Fp8Matmul>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [lhs.shape(), rhs.shape()];
    let mut gemm = Gemm::from_shapes(&shapes[0], &shapes[1]).unwrap_or_else(|| {
        let leading = "and leading dimensions must be equal, or 1 in one of them";
        misfit("matrices", shapes, &format!("[…, M, K] and […, K, N], {leading}"))
    });
    let kind = innermost(&PARTS).unwrap_or(ProductKind::Matmul);
    gemm.plain_operand &= kind != ProductKind::Attention;
    match plan::<B>(kind, GemmRole::Output, gemm, [&lhs, &rhs]) {
        Some(product) => B::fp8_matmul(lhs, rhs, product),
        None => B::float_matmul(lhs, rhs),
    }
}

pub(super) fn linear<B: Fp8Matmul>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let shapes = [x.shape(), weight.shape()];
    let gemm = linear_gemm(&shapes[0], &shapes[1])
        .unwrap_or_else(|| misfit("input and weight", shapes, "[…, K] and [K, N]"));
    match plan::<B>(ProductKind::Linear, GemmRole::Output, gemm, [&x, &weight]) {
        Some(product) => B::fp8_linear(x, weight, bias, product),
        None => B::linear(x, weight, bias),
    }
}

pub(super) fn linear_x_backward<B: Fp8Matmul>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [output_grad.shape(), weight.shape()];
    let transposed = shapes[1].iter().rev().copied().collect();
    let gemm = linear_gemm(&shapes[0], &transposed)
        .unwrap_or_else(|| misfit("output gradient and weight", shapes, "[…, N] and [K, N]"));
    let forward = gemm.for_role(GemmRole::GradInput);
    match plan::<B>(ProductKind::Linear, GemmRole::GradInput, forward, [&output_grad, &weight]) {
        Some(product) => B::fp8_linear_x_backward(weight, output_grad, product),
        None => B::linear_x_backward(weight, output_grad),
    }
}

pub(super) fn linear_weight_backward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [x.shape(), output_grad.shape()];
    let last = shapes[0].len().saturating_sub(1);
    if last == 0 || shapes[1].len() != last + 1 || shapes[0][..last] != shapes[1][..last] {
        misfit("input and output gradient", shapes, "[…, K] and […, N], with the same rows");
    }
    let rows = shapes[0][..last].iter().product();
    let forward = Gemm::matrix(rows, shapes[1][last], shapes[0][last]);
    match plan::<B>(ProductKind::Linear, GemmRole::GradWeight, forward, [&x, &output_grad]) {
        Some(product) => B::fp8_linear_weight_backward(x, output_grad, product),
        None => B::linear_weight_backward(x, output_grad),
    }
}

/// Backends may not check the shapes of a product: Flex 0.21 reads foreign memory where batches do not broadcast. So this holds with FP8 off, too.
fn misfit(what: &str, [lhs, rhs]: [Shape; 2], fits: &str) -> ! {
    let (lhs, rhs) = (lhs.as_slice(), rhs.as_slice());
    panic!("{what} of the shapes {lhs:?} and {rhs:?} do not multiply; these do: {fits}")
}

thread_local! {
    /// What plain products are part of, on this thread.
    static PARTS: RefCell<Vec<ProductKind>> = const { RefCell::new(Vec::new()) };
}

/// Attention keeps the fused kernels of `B` unless one of its two products runs in FP8.
pub(super) fn attention<B: Fp8Matmul>(
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
        let kind = ProductKind::Attention;
        // A batch by nature, also where it holds one pair of matrices: batch size and heads must not decide the precision.
        let gemm = |n, k| Gemm { batch: batch * heads, m: queries, n, k, plain_operand: false };
        let products = [
            (gemm(keys, width), [query.dtype(), key.dtype()]),
            (gemm(value_width, keys), [query.dtype(), value.dtype()]),
        ];
        let decisions = products.map(|(gemm, dtypes)| Product::would_run(kind, gemm, dtypes));
        if decisions.iter().any(Result::is_ok) {
            return within(&PARTS, kind, || {
                attention_fallback::<Fp8Backend<B>>(query, key, value, mask, attn_bias, options)
            })
            .0;
        }
        let scores = B::fp8_is_tracked([&query, &key]);
        let context = scores || B::fp8_is_tracked([&value, &value]);
        [scores, context].into_iter().filter(|tracked| *tracked).for_each(|_| Product::skip_site());
        for ((gemm, _), decision) in products.iter().zip(decisions) {
            if let Err(reason) = decision {
                record_high_precision(kind, GemmRole::Output, *gemm, reason);
            }
        }
    }
    B::attention(query, key, value, mask, attn_bias, options)
}

/// The decision about a product. One that is tracked and not in FP8 is counted all the same, so that those after it keep their sites.
fn plan<B: Fp8Matmul>(
    kind: ProductKind,
    role: GemmRole,
    forward: Gemm,
    operands: [&FloatTensor<B>; 2],
) -> Option<Product> {
    let product = Product::plan::<B>(kind, role, forward, operands);
    if product.is_none() && B::fp8_is_tracked(operands) {
        Product::skip_site();
    }
    product
}
