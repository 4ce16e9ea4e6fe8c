//! The product of a layer, emulated.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, ProductKind};

use super::{Backward, DotMode, DotOptions, Forward, gemm};
use crate::matmul::{Measured, Quantized, SavedOperand, join, reshape};
use crate::ops::QdqOptions;
use crate::ops::flax::{self, Keep};
use crate::report::{self, Pending, PendingOperand, PendingRan, Ran};
use crate::{Fp8Matmul, Scalar};

/// `x` `[…, K]` times `kernel` `[K, N]`, neither of them empty, in the type of the kernel.
pub(super) fn forward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    [input_state, kernel_state]: [[FloatTensor<B>; 2]; 2],
    options: DotOptions,
    save: [bool; 2],
) -> Forward<B> {
    let dtype = kernel.dtype();
    let shapes = [x.shape(), kernel.shape()];
    let keep = save.map(|save| if save { Keep::Codes } else { Keep::Values });
    let qdq = options.qdq(Fp8Format::E4M3, dtype);
    let (x, input_state) = quantize::<B>(x, input_state, qdq, keep[0]);
    let (kernel, kernel_state) = quantize::<B>(kernel, kernel_state, qdq, keep[1]);
    let saved = [&x, &kernel].map(|operand| operand.codes().map(SavedOperand::Fp8));

    let product = Product { options, dtype, forward: gemm(&shapes) };
    let output = product.multiply(GemmRole::Output, x.map(join::<B>), kernel);
    let [mut shape, kernel_shape] = shapes;
    let last = shape.num_dims() - 1;
    shape[last] = kernel_shape[1];
    let states = [input_state, kernel_state];
    Forward { output: reshape::<B>(output, shape), saved, states, tap: None }
}

/// The gradients of `x` and `kernel`, of the given shapes, from E5M2 codes of the output gradient.
pub(super) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    [x, kernel]: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
    state: [FloatTensor<B>; 2],
    options: DotOptions,
) -> Backward<B> {
    let dtype = output_grad.dtype();
    let qdq = options.qdq(Fp8Format::E5M2, dtype);
    let (grad, state) = quantize::<B>(output_grad, state, qdq, Keep::Values);
    let grad = grad.map(join::<B>);
    let product = Product { options, dtype, forward: gemm(&shapes) };
    let [x_shape, kernel_shape] = shapes;

    let grad_x = kernel.map(|kernel| {
        let kernel = restore(kernel).map(B::float_transpose);
        let grad = product.multiply(GemmRole::GradInput, grad.clone(), kernel);
        reshape::<B>(grad, x_shape)
    });
    let grad_kernel = x.map(|x| {
        let x = restore(x).map(join::<B>).map(B::float_transpose);
        let grad = product.multiply(GemmRole::GradWeight, x, grad);
        reshape::<B>(grad, kernel_shape)
    });
    Backward { operands: [grad_x, grad_kernel], state }
}

fn restore<B: Fp8Matmul>(saved: SavedOperand<B>) -> Measured<B> {
    match saved {
        SavedOperand::Fp8(codes) => codes.restore(None),
        _ => unreachable!("an emulated product of a layer saves codes"),
    }
}

/// Quantizes a tensor with its new scale, and updates its state.
fn quantize<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    state: [FloatTensor<B>; 2],
    options: QdqOptions,
    keep: Keep,
) -> (Measured<B>, [FloatTensor<B>; 2]) {
    let [scale, history] = flax::update::<B>(&tensor, state, options);
    let compute_dtype = options.compute_dtype.unwrap_or_else(|| tensor.dtype().into());
    let quantized =
        flax::quantize::<B>(&tensor, scale.clone(), options.format, compute_dtype, keep);
    (Measured::new(&tensor, quantized), [scale, history])
}

struct Product {
    options: DotOptions,
    dtype: DType,
    forward: Gemm,
}

impl Product {
    /// Multiplies two matrices of codes, in f32 whatever the type of the result: products of codes overflow f16.
    fn multiply<B: Fp8Matmul>(
        &self,
        role: GemmRole,
        lhs: Measured<B>,
        rhs: Measured<B>,
    ) -> FloatTensor<B> {
        report::record(|| Pending {
            kind: ProductKind::Linear,
            role,
            gemm: self.forward.for_role(role),
            operands: Some([&lhs, &rhs].map(PendingOperand::new)),
            site: None,
            ran: PendingRan::Known(Ran::FakeQuantized),
        });
        let output = match self.options.mode {
            DotMode::Direct => {
                let (lhs, rhs) = (lhs.quantized, rhs.quantized);
                let output = B::fp8_plain_matmul(lhs.values, rhs.values);
                B::fp8_rescale(output, &lhs.scale, &rhs.scale)
            }
            DotMode::QuantizeDequantize => {
                let [lhs, rhs] = [lhs, rhs].map(|operand| self.dequantize(operand));
                B::fp8_plain_matmul(lhs, rhs)
            }
        };
        flax::cast::<B>(output, self.dtype)
    }

    /// The operand in the type of the product, then in f32.
    fn dequantize<B: Fp8Matmul>(&self, operand: Measured<B>) -> FloatTensor<B> {
        let Quantized { values, scale, .. } = operand.quantized;
        if self.dtype == DType::F32 {
            // The same product, in place where the backend can.
            return B::fp8_rescale(values, &scale, &Scalar::Host(1.0));
        }
        let scale = on_device::<B>(scale, &values);
        flax::cast::<B>(flax::dequantize::<B>(values, scale, self.dtype), DType::F32)
    }
}

fn on_device<B: Backend>(scale: Scalar<B>, tensor: &FloatTensor<B>) -> FloatTensor<B> {
    crate::matmul::on_device::<B>(&scale, &B::float_device(tensor))
}
