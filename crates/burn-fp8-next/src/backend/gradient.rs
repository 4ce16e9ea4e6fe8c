//! The two products of the backward pass of a plain product, which Autodiff asks for as plain products.

use burn_backend::{TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Gemm, GemmRole, ProductKind};

use super::Fp8Matmul;
use super::session::Gradient;
use crate::engine::tensor::reshape;
use crate::product::{Product, gemms};

/// `[output_grad, weightᵀ]` or `[inputᵀ, output_grad]`, multiplied as the role says.
pub(super) fn matmul<B: Fp8Matmul>(
    gradient: Gradient,
    [lhs, rhs]: [FloatTensor<B>; 2],
) -> FloatTensor<B> {
    let Gradient { role, by_plain } = gradient;
    let (mut shape, columns) = (lhs.shape(), rhs.shape());
    let last = shape.num_dims() - 1;
    let Some(gemm) = Gemm::from_shapes(&shape, &columns) else {
        return B::float_matmul(lhs, rhs);
    };
    shape[last] = columns[last];
    let mut forward = gemm.for_role(role);
    forward.plain_operand |= by_plain;
    // As they lay before Autodiff transposed one of them: how an operand is quantized follows from that.
    let operands = match role {
        GemmRole::GradWeight => [B::float_transpose(lhs.clone()), rhs.clone()],
        _ => [lhs.clone(), B::float_transpose(rhs.clone())],
    };
    let kind = ProductKind::Matmul;
    match Product::plan::<B>(kind, role, forward, operands.each_ref(), true, || None) {
        Some(product) => {
            let product = gemms::gradient::<B>(role, operands.each_ref(), &product);
            match forward.batch {
                1 => reshape::<B>(product, shape),
                _ => product,
            }
        }
        None => B::float_matmul(lhs, rhs),
    }
}
