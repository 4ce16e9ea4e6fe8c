//! What a layer does between products: on slices where tensors lie in the host's memory and no gradient is wanted, in operations of the framework elsewhere.

use burn::nn::RmsNorm;
use burn::tensor::activation::silu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8_cpu::decoder::{rms_norm, swiglu, to_bf16};
use half::bf16;

/// Whether it runs on slices. For a single token the framework's operations take as long as a product.
pub(super) fn on_host<B: Fp8Matmul>(device: &B::Device) -> bool {
    B::FP8_ON_HOST && !B::ad_enabled(device)
}

/// What a norm makes of `[…, width]`.
pub(super) fn norm<B: Fp8Matmul, const D: usize>(
    norm: &RmsNorm<B>,
    x: Tensor<B, D>,
) -> Tensor<B, D> {
    if !on_host::<B>(&x.device()) {
        return norm.forward(x);
    }
    let gamma = norm.gamma.val().into_data();
    let gamma = gamma.as_slice::<f32>().expect("norms are f32");
    in_place(x, |x| rms_norm(x, gamma, norm.epsilon as f32))
}

/// `silu(gate) · up`, of one shape.
pub(super) fn gated<B: Fp8Matmul>(gate: Tensor<B, 3>, up: Tensor<B, 3>) -> Tensor<B, 3> {
    if !on_host::<B>(&gate.device()) {
        return silu(gate) * up;
    }
    let up = up.into_data();
    let up = up.as_slice().expect("products are f32");
    in_place(gate, |gate| swiglu(gate, up))
}

/// Rounded to bf16. Flex goes through f64, and rounds what is barely more than half of a step as half of it.
pub(super) fn rounded<B: Fp8Matmul>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    let (shape, device) = (x.dims(), x.device());
    if !on_host::<B>(&device) {
        return x.cast(FloatDType::BF16);
    }
    let x = x.into_data();
    let x = x.as_slice().expect("keys and values are f32");
    let mut y = vec![bf16::ZERO; x.len()];
    to_bf16(x, &mut y);
    Tensor::from_data(TensorData::new(y, shape), (&device, DType::BF16))
}

/// `[batch, tokens, heads, width]` as `[batch, heads, tokens, width]`, one row after the other, where a view of them is read number by number.
pub(super) fn by_heads<B: Fp8Matmul>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    let ([batch, tokens, heads, width], device, dtype) = (x.dims(), x.device(), x.dtype());
    if tokens == 1 {
        return x.reshape([batch, heads, tokens, width]);
    }
    if !on_host::<B>(&device) {
        return x.swap_dims(1, 2);
    }
    let x = x.into_data();
    let row = width * dtype.size();
    let mut rows = Vec::with_capacity(x.bytes.len());
    for of_tokens in x.bytes.chunks_exact(tokens * heads * row) {
        for head in 0..heads {
            for token in of_tokens.chunks_exact(heads * row) {
                rows.extend_from_slice(&token[head * row..][..row]);
            }
        }
    }
    let rows = TensorData::from_bytes_vec(rows, [batch, heads, tokens, width], dtype);
    Tensor::from_data(rows, (&device, dtype))
}

/// The same tensor, f32, with other numbers.
pub(super) fn in_place<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    change: impl FnOnce(&mut [f32]),
) -> Tensor<B, D> {
    let (shape, device) = (x.dims(), x.device());
    let mut values = x.into_data().into_vec().expect("what goes through layers is f32");
    change(&mut values);
    Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32))
}
