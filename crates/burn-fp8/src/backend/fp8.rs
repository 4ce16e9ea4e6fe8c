//! What products in FP8 need of a backend, for `Fp8Backend<B>`: it is what `B` does. Nothing is quantized twice.

use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{FloatDType, Shape};
use burn_fp8_core::{Pointwise, ProductKind};

use super::{Fp8Backend, Fp8Matmul};
use crate::engine::{
    AttentionGradients, AttentionOf, Capability, EpilogueOf, Fallback, Fp8Engine, MatrixOf,
    OperandOf, Problem, ProductOf, RequestOf, Run, Scales, Target,
};
use crate::product::{Fp8Products, FrozenOptions, Product};
use crate::weights::Leaf;

// The tensors are those of `B`, so the structs of the engine are, too.
impl<B: Fp8Matmul> Fp8Engine for Fp8Backend<B> {
    const FP8_KERNELS: bool = B::FP8_KERNELS;
    const FP8_ON_HOST: bool = B::FP8_ON_HOST;

    fn fp8_codes(codes: &IntTensor<Self>) -> Option<&[u8]> {
        B::fp8_codes(codes)
    }

    fn fp8_memory(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        B::fp8_memory(tensor)
    }

    fn fp8_capability(device: &Self::Device) -> Capability {
        B::fp8_capability(device)
    }

    fn fp8_check(device: &Self::Device, problem: &Problem) -> Result<(), Fallback> {
        B::fp8_check(device, problem)
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        B::fp8_quantize(tensor, request)
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        B::fp8_dequantize(matrix)
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        B::fp8_multiply(lhs, rhs, epilogue, run)
    }

    fn fp8_multiply_in_bf16(
        operands: [FloatTensor<Self>; 2],
        dtype: FloatDType,
        target: &Target,
    ) -> FloatTensor<Self> {
        B::fp8_multiply_in_bf16(operands, dtype, target)
    }

    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        B::fp8_rescale(product, scales)
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_amax(tensor)
    }

    fn fp8_attend(
        qkv: [FloatTensor<Self>; 3],
        attention: &AttentionOf<Self>,
    ) -> [FloatTensor<Self>; 2] {
        B::fp8_attend(qkv, attention)
    }

    fn fp8_attend_to_codes(
        q: FloatTensor<Self>,
        kv: [MatrixOf<Self>; 2],
        attention: &AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_attend_to_codes(q, kv, attention)
    }

    fn fp8_attend_backward(
        qkv: [FloatTensor<Self>; 3],
        attention: &AttentionOf<Self>,
        given: [FloatTensor<Self>; 3],
        wants_bias: bool,
    ) -> AttentionGradients<FloatTensor<Self>> {
        B::fp8_attend_backward(qkv, attention, given, wants_bias)
    }

    fn fp8_self_attend_backward(
        qkv: [FloatTensor<Self>; 3],
        attention: &AttentionOf<Self>,
        given: [FloatTensor<Self>; 3],
        wants_bias: bool,
    ) -> AttentionGradients<FloatTensor<Self>, 1> {
        B::fp8_self_attend_backward(qkv, attention, given, wants_bias)
    }

    fn fp8_pointwise(operation: Pointwise, x: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_pointwise(operation, x)
    }

    fn fp8_pointwise_backward(
        operation: Pointwise,
        x: Option<FloatTensor<Self>>,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_pointwise_backward(operation, x, grad)
    }

    fn fp8_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        B::fp8_layer_norm(x, gamma, beta, epsilon)
    }

    fn fp8_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        epsilon: f64,
    ) -> [FloatTensor<Self>; 3] {
        B::fp8_layer_norm_backward(x, gamma, grad, epsilon)
    }
}

impl<B: Fp8Matmul> Fp8Products for Fp8Backend<B> {
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        B::fp8_is_tracked(tensors)
    }

    fn fp8_weight(kind: ProductKind, rhs: &FloatTensor<Self>) -> Option<Leaf> {
        B::fp8_weight(kind, rhs)
    }

    fn fp8_nothing<const N: usize>(
        operands: [&FloatTensor<Self>; N],
        shape: Shape,
    ) -> FloatTensor<Self> {
        B::fp8_nothing(operands, shape)
    }

    fn fp8_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_matmul(lhs, rhs, product)
    }

    fn fp8_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear(x, weight, bias, product)
    }

    fn fp8_linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear_x_backward(weight, output_grad, product)
    }

    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear_weight_backward(x, output_grad, product)
    }

    fn fp8_frozen(
        x: FloatTensor<Self>,
        weight: MatrixOf<Self>,
        options: FrozenOptions,
    ) -> FloatTensor<Self> {
        B::fp8_frozen(x, weight, options)
    }

    fn fp8_attention(
        qkv: [FloatTensor<Self>; 3],
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_attention(qkv, attention)
    }

    fn fp8_self_attention(
        qkv: FloatTensor<Self>,
        kv_heads: usize,
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_self_attention(qkv, kv_heads, attention)
    }

    fn fp8_pointwise_op(operation: Pointwise, x: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_pointwise_op(operation, x)
    }

    fn fp8_layer_norm_op(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        B::fp8_layer_norm_op(x, gamma, beta, epsilon)
    }
}
