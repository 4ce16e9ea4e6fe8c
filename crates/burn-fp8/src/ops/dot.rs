//! The product of an FP8 layer: three operands with delayed scaling, two ways to multiply.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{AmaxChoice, Fp8Format, Gemm, GemmRole, ProductKind};
use serde::{Deserialize, Serialize};

use super::QdqOptions;
use super::flax::{self, Keep};
use crate::matmul::{Measured, Quantized, SavedCodes, join, reshape};
use crate::report::{self, Pending, PendingOperand, PendingRan, Ran};
use crate::{Fp8Matmul, Scalar};

/// How an FP8 layer multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DotMode {
    /// Operands are dequantized, then multiplied: `in_qdq`, `in_qdq`, dot, `out_qdq`. Flax's `Fp8DotGeneralOp`.
    QuantizeDequantize,
    /// Codes are multiplied, the product then by both scales at once: what FP8 hardware does. Flax's `Fp8DirectDotGeneralOp`.
    #[default]
    Direct,
}

/// The options of an FP8 layer's product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DotOptions {
    /// How it multiplies.
    pub mode: DotMode,
    /// The scales are multiplied by 2 to this power.
    pub margin: i32,
    /// Which amax of a history counts.
    pub amax_choice: AmaxChoice,
}

impl DotOptions {
    fn qdq(self, format: Fp8Format, dtype: DType) -> QdqOptions {
        let Self { mode: _, margin, amax_choice } = self;
        QdqOptions { format, compute_dtype: Some(dtype.into()), margin, amax_choice }
    }
}

/// The product of the forward pass, and what the backward pass needs.
pub(crate) struct Forward<B: Fp8Matmul> {
    pub(crate) output: FloatTensor<B>,
    /// The codes of the operands that were asked for.
    pub(crate) saved: [Option<SavedCodes<B>>; 2],
    /// The new state of both operands: scale `[1]` and history `[H]`.
    pub(crate) states: [[FloatTensor<B>; 2]; 2],
}

/// `x` `[…, K]` times `kernel` `[K, N]`, neither of them empty, in the type of the kernel.
pub(crate) fn forward<B: Fp8Matmul>(
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
    let saved = [&x, &kernel].map(Measured::codes);

    let product = Product { options, dtype, forward: gemm(&shapes) };
    let output = product.multiply(GemmRole::Output, x.map(join::<B>), kernel);
    let [mut shape, kernel_shape] = shapes;
    let last = shape.num_dims() - 1;
    shape[last] = kernel_shape[1];
    Forward { output: reshape::<B>(output, shape), saved, states: [input_state, kernel_state] }
}

/// The gradients of a product.
pub(crate) struct Backward<B: Fp8Matmul> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(crate) operands: [Option<FloatTensor<B>>; 2],
    /// The new state of the output gradient: scale `[1]` and history `[H]`.
    pub(crate) state: [FloatTensor<B>; 2],
}

/// The gradients of `x` and `kernel`, of the given shapes, from E5M2 codes of the output gradient.
pub(crate) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    [x, kernel]: [Option<SavedCodes<B>>; 2],
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
        let kernel = kernel.restore(None).map(B::float_transpose);
        let grad = product.multiply(GemmRole::GradInput, grad.clone(), kernel);
        reshape::<B>(grad, x_shape)
    });
    let grad_kernel = x.map(|x| {
        let x = x.restore(None).map(join::<B>).map(B::float_transpose);
        let grad = product.multiply(GemmRole::GradWeight, x, grad);
        reshape::<B>(grad, kernel_shape)
    });
    Backward { operands: [grad_x, grad_kernel], state }
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

fn gemm([x, kernel]: &[Shape; 2]) -> Gemm {
    Gemm::matrix(x.num_elements() / kernel[0], kernel[1], kernel[0])
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
