//! What the FP8 layers need of a backend, for `Fp8Backend<B>`: it is what `B` does. Nothing is quantized twice.

use burn::tensor::FloatDType;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::convert::Rewrap;
use super::{Fp8Backend, Fp8Matmul};
use crate::engine::{
    BlockCodes, Capability, CodesPrimitive, Fallback, Fp8Engine, GemmOperand, GemmOptions,
    NativeProblem, Quantize, QuantizeBlocks, QuantizeMatrix, QuantizeRows, Quantized,
    QuantizedCodes, QuantizedMatrix, Scalar, ScaleRule, ScaledOperand, ScaledProduct,
    ScaledRequest, UnitOperand, UnitOptions,
};
use crate::ops::{DotOptions, Fp8LayerOps, QdqOptions};
use crate::product::{Fp8Products, Product};

impl<B: Fp8Matmul> Fp8Engine for Fp8Backend<B> {
    const FP8_KERNELS: bool = B::FP8_KERNELS;

    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        B::fp8_quantize(tensor, request.rewrap()).rewrap()
    }

    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        let (codes, scale) = B::fp8_quantize_codes(tensor, format, scale.rewrap());
        (codes.rewrap(), scale.rewrap())
    }

    fn fp8_quantize_for_unit(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> QuantizedCodes<Self> {
        B::fp8_quantize_for_unit(tensor, format, scale.rewrap()).rewrap()
    }

    fn fp8_matmul_on_unit(
        lhs: UnitOperand<Self>,
        rhs: UnitOperand<Self>,
        options: UnitOptions,
    ) -> FloatTensor<Self> {
        B::fp8_matmul_on_unit(lhs.rewrap(), rhs.rewrap(), options)
    }

    fn fp8_values(codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        B::fp8_values(codes.rewrap())
    }

    fn fp8_quantize_matrix(
        tensor: FloatTensor<Self>,
        request: QuantizeMatrix<Self>,
    ) -> QuantizedMatrix<Self> {
        B::fp8_quantize_matrix(tensor, request.rewrap()).rewrap()
    }

    fn fp8_gemm(
        lhs: GemmOperand<Self>,
        rhs: GemmOperand<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        B::fp8_gemm(lhs.rewrap(), rhs.rewrap(), options)
    }

    fn fp8_gemm_of_blocks(
        lhs: BlockCodes<Self>,
        rhs: BlockCodes<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        B::fp8_gemm_of_blocks(lhs.rewrap(), rhs.rewrap(), options)
    }

    fn fp8_rescale(
        tensor: FloatTensor<Self>,
        lhs: &Scalar<Self>,
        rhs: &Scalar<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_rescale(tensor, &lhs.clone().rewrap(), &rhs.clone().rewrap())
    }

    fn fp8_quantize_rows(
        tensor: FloatTensor<Self>,
        request: QuantizeRows,
    ) -> (CodesPrimitive<Self>, FloatTensor<Self>) {
        let (codes, scales) = B::fp8_quantize_rows(tensor, request);
        (codes.rewrap(), scales)
    }

    fn fp8_rescale_rows(
        tensor: FloatTensor<Self>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_rescale_rows(tensor, lhs, rhs)
    }

    fn fp8_quantize_blocks(tensor: FloatTensor<Self>, request: QuantizeBlocks) -> BlockCodes<Self> {
        B::fp8_quantize_blocks(tensor, request).rewrap()
    }

    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FloatTensor<Self> {
        B::fp8_dequantize_blocks(codes.rewrap())
    }

    fn fp8_matmul_block_codes(x: FloatTensor<Self>, codes: BlockCodes<Self>) -> FloatTensor<Self> {
        B::fp8_matmul_block_codes(x, codes.rewrap())
    }

    fn fp8_capability(device: &Self::Device) -> Capability {
        B::fp8_capability(device)
    }

    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        B::fp8_check_native(device, problem)
    }

    fn fp8_plain_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_plain_matmul(lhs, rhs)
    }

    fn fp8_matmul_values(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_matmul_values(lhs, rhs)
    }

    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        B::fp8_matmul_codes(x, codes.rewrap())
    }

    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        B::fp8_scaled_matmul(a.rewrap(), b_t.rewrap(), request.rewrap()).rewrap()
    }

    fn fp8_scaled_matmul_emulated(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        B::fp8_scaled_matmul_emulated(a.rewrap(), b_t.rewrap(), request.rewrap()).rewrap()
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_amax(tensor)
    }
}

impl<B: Fp8Matmul> Fp8Products for Fp8Backend<B> {
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        B::fp8_is_tracked(tensors)
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
}

impl<B: Fp8Matmul> Fp8LayerOps for Fp8Backend<B> {
    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        B::fp8_quantize_dequantize(x, scale, format, compute_dtype)
    }

    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        B::fp8_in_qdq(x, state, options)
    }

    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        B::fp8_out_qdq(x, state, options)
    }

    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        B::fp8_dot(x, kernel, states, options)
    }
}
