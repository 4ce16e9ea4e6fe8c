//! FP8 products on a backend: with backward steps of their own where it tracks gradients.

use burn_backend::{Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Pointwise, ProductKind};

use super::attention;
use super::frozen::{self, FrozenOptions};
use super::gemms;
use super::norm;
use super::plan::Product;
use super::pointwise;
use crate::engine::{AttentionOf, Fp8Engine, MatrixOf, Untracked};
use crate::host;
use crate::weights::Leaf;

/// The products that `Fp8Backend` runs in FP8.
///
/// On a backend without gradients they just run. `Autodiff<B>` runs them on `B` and registers a backward step.
pub trait Fp8Products: Fp8Engine {
    /// Whether gradients are tracked for one of two tensors.
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        let _ = tensors;
        false
    }

    /// The right operand of a product of this kind, as a parameter that outlives the step, if it is one in the graph.
    fn fp8_weight(kind: ProductKind, rhs: &FloatTensor<Self>) -> Option<Leaf> {
        let _ = (kind, rhs);
        None
    }

    /// Zeros of this shape, or nothing: the product of operands of which one is empty. Their gradients are zeros.
    fn fp8_nothing<const N: usize>(
        operands: [&FloatTensor<Self>; N],
        shape: Shape,
    ) -> FloatTensor<Self> {
        let device = host::float_device::<Self>(operands[0]);
        Self::float_zeros(shape, &device, operands[0].dtype().into())
    }

    /// Runs `lhs` `[…, M, K]` times `rhs` `[…, K, N]` in FP8. The result has the type of `lhs`.
    fn fp8_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        gemms::forward::<Self>(lhs, rhs, None, &product, &product.gemms, [false, false]).output
    }

    /// Runs `x` `[…, K]` times `weight` `[K, N]` in FP8 and adds `bias` `[N]`.
    fn fp8_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        product: Product,
    ) -> FloatTensor<Self> {
        gemms::forward::<Self>(x, weight, bias, &product, &product.gemms, [false, false]).output
    }

    /// Runs `output_grad` `[…, N]` times `weight` `[K, N]` transposed in FP8.
    fn fp8_linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        gemms::linear_x_backward::<Self>(weight, output_grad, &product, &product.gemms)
    }

    /// Runs `x` `[…, K]` transposed times `output_grad` `[…, N]` in FP8, as one product over all leading dimensions.
    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        gemms::linear_weight_backward::<Self>(x, output_grad, &product, &product.gemms)
    }

    /// The product of a frozen layer: `x` `[M, K]`, f32, f16 or bf16, not empty, times a weight `[K, N]` in FP8: `[M, N]`, of the type of `x`. Gradients
    /// reach `x`.
    fn fp8_frozen(
        x: FloatTensor<Self>,
        weight: MatrixOf<Self>,
        options: FrozenOptions,
    ) -> FloatTensor<Self> {
        frozen::multiply::<Self>(x, weight, &options)
    }

    /// Attention as one operation, of queries, keys and values of one float type, which the result has; shapes as of
    /// [`Fp8Engine::fp8_attend`]. Gradients reach all three, and the bias.
    fn fp8_attention(
        qkv: [FloatTensor<Self>; 3],
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        attention::forward::<Self>(qkv, &attention).output
    }

    /// The same of queries, keys and values in one tensor `[batch, length, heads + 2 · kv_heads, width]`, along its heads.
    fn fp8_self_attention(
        qkv: FloatTensor<Self>,
        kv_heads: usize,
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        attention::forward::<Self>(attention::apart::<Self>(qkv, kv_heads), &attention).output
    }

    /// An operation on single elements, of any float type, which the result has. Gradients reach `x`.
    fn fp8_pointwise_op(operation: Pointwise, x: FloatTensor<Self>) -> FloatTensor<Self> {
        pointwise::forward::<Self>(operation, x).0
    }

    /// Layer normalization of `x` `[…, N]`, of any float type, which the result has. Gradients reach all three.
    fn fp8_layer_norm_op(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        norm::forward::<Self>(x, gamma, beta, epsilon).0
    }
}

impl<B: Untracked> Fp8Products for B {}
